"""Who is let in, and what the others are told."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.broker.identities import Identities, digest_of
from penstock.model.access import EVERYTHING, NOBODY, Access, Verb
from penstock.model.tokens import Token


@pytest.mark.parametrize("shown", [None, b"", b"Bearer anything", b"Basic eDp5"])
def test_without_tokens_everyone_is_let_in(shown: bytes | None) -> None:
    assert Identities(()).of_header(shown) is EVERYTHING


@pytest.mark.parametrize(
    "shown",
    [b"Bearer first", b"Bearer second", b"bearer first", b"BEARER second", b"Bearer  first", b" Bearer first "],
)
def test_each_token_opens_the_door_however_the_scheme_is_written(shown: bytes) -> None:
    assert Identities(["first", "second"]).of_header(shown).may(Verb.ADMIN, "*")


@pytest.mark.parametrize(
    "shown",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"first",
        b"Basic first",
        b"Bearer firs",
        b"Bearer first2",
        b"Bearer FIRST",
        b"Bearer first,second",
        b"Bearer first second",
        b"Bearer\tfirst",
        b"Bearer \xff\x00",
        b"Bearer " + b"x" * 100_000,
    ],
)
def test_nothing_else_does(shown: bytes | None) -> None:
    assert Identities(["first", "second"]).of_header(shown) is NOBODY


def test_a_token_in_another_script_is_compared_as_utf_8() -> None:
    identities = Identities(["schlüssel"])
    assert identities.of_header("Bearer schlüssel".encode()) is not NOBODY
    assert identities.of_header("Bearer schlüssel".encode("latin-1")) is NOBODY


def test_the_tokens_are_not_kept() -> None:
    assert "very-secret" not in str(vars(Identities(["very-secret"])))


def test_a_token_alone_is_judged_as_one_in_a_header() -> None:
    identities = Identities(["first", "second"])
    assert identities.of_token("first") is identities.of_header(b"Bearer first")
    assert identities.of_token("second") is not NOBODY
    assert {identities.of_token(text) for text in ["", "Bearer first", " first", "firs", "FIRST", "ü"]} == {NOBODY}
    assert Identities(()).of_token("anything") is EVERYTHING


def test_changed_expired_and_revoked_tokens_end_their_access_and_no_other() -> None:
    now, ended = [0], list[Access]()
    identities = Identities((), lambda: now[0])
    identities.on_change.append(ended.extend)
    shop = Token(scopes=("read:a",), digest=digest_of(b"shop"), expires=50)
    old = Token(scopes=("read:b",), digest=digest_of(b"new"), old_digest=digest_of(b"old"), old_until=30)
    identities.update({"shop": shop, "turned": old})
    assert ended == [EVERYTHING]
    seen = {name: identities.of_token(name) for name in ("shop", "old", "new")}
    assert [access.name for access in seen.values()] == ["shop", "turned", "turned"]
    assert identities.expire() == 30 - now[0]
    for time, gone in ((30, "old"), (50, "shop")):
        now[0] = time
        ended.clear()
        identities.expire()
        assert ended == [seen[gone]]
        assert identities.of_token(gone) is NOBODY
    identities.update({"turned": replace(old, scopes=("read:c",))})
    assert identities.of_token("new") is not seen["new"]
    identities.load({})
    assert identities.of_token("new") is EVERYTHING


def test_when_a_token_was_used_last() -> None:
    now = [5]
    identities = Identities((), lambda: now[0])
    identities.update({name: Token(scopes=("read:*",), digest=digest_of(name.encode())) for name in ("shop", "till")})
    assert identities.used("shop") == 0
    identities.of_token("shop")
    now[0] = 6
    identities.of_token("till")
    assert (identities.used("shop"), identities.used("till"), identities.used("nobody")) == (5, 6, 0)
