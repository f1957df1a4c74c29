"""Tokens: somebody can always manage them, and what was decided is what a replay finds."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Done, Refused, TokenDescription, TokenList
from penstock.model.tokens import DescribeToken, ListTokens, RevokeToken, RotateToken, SetToken, Token
from tests.support.engine_rig import START_NS, Rig

BOSS = Token(scopes=("admin:*",), digest="aa")
SHOP = Token(scopes=("publish:orders*",), digest="bb")


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    assert isinstance(rig.do(SetToken("boss", BOSS, is_new=True)), TokenDescription)
    return rig


def refused(answer: Answer) -> Reason | None:
    return answer.reason if isinstance(answer, Refused) else None


def found(rig: Rig, name: str) -> Token:
    answer: Any = rig.do(DescribeToken(name))
    assert isinstance(answer, TokenDescription), answer
    return answer.token


def test_the_first_token_is_an_admin_unless_the_settings_have_one() -> None:
    assert refused(Rig().do(SetToken("shop", SHOP, is_new=True))) is Reason.NO_ADMIN
    assert refused(Rig().do(SetToken("shop", SHOP, is_new=True, has_admins=True))) is None


def test_the_last_admin_stays_as_long_as_there_are_others(rig: Rig) -> None:
    rig.do(SetToken("shop", SHOP, is_new=True))
    assert refused(rig.do(SetToken("boss", SHOP))) is Reason.NO_ADMIN
    assert refused(rig.do(RevokeToken("boss"))) is Reason.NO_ADMIN
    assert rig.do(RevokeToken("shop")) == Done()
    assert rig.do(RevokeToken("boss")) == Done()
    assert rig.engine.tokens.admins == len(rig.engine.tokens) == 0


def test_a_token_is_created_once_and_changed_only_if_it_is_there(rig: Rig) -> None:
    assert refused(rig.do(SetToken("boss", BOSS, is_new=True))) is Reason.TOKEN_EXISTS
    for command in (SetToken("shop", SHOP), RotateToken("shop", "cc"), RevokeToken("shop"), DescribeToken("shop")):
        assert refused(rig.do(command)) is Reason.NO_TOKEN


def test_a_change_keeps_when_the_token_was_created(rig: Rig) -> None:
    created = found(rig, "boss").created
    rig.do(SetToken("boss", Token(scopes=("admin:*", "read:*"), digest="aa")))
    assert found(rig, "boss").created == created


def test_a_token_does_not_begin_expired(rig: Rig) -> None:
    past = Token(scopes=("read:*",), digest="cc", expires=START_NS - SECOND_NS)
    assert refused(rig.do(SetToken("late", past, is_new=True))) is Reason.EXPIRES_IN_THE_PAST


def test_a_rotation_keeps_the_old_secret_only_for_its_grace(rig: Rig) -> None:
    rig.do(RotateToken("boss", "cc", 60 * SECOND_NS))
    token = found(rig, "boss")
    assert (token.digest, token.old_digest) == ("cc", "aa")
    assert token.keys_at(token.old_until - 1) == ("cc", "aa")
    assert token.keys_at(token.old_until) == ("cc",)
    rig.do(RotateToken("boss", "dd"))
    assert found(rig, "boss").keys == ("dd",)


def test_a_token_with_a_certificate_has_no_secret_to_rotate(rig: Rig) -> None:
    rig.do(SetToken("machine", Token(scopes=("read:*",), certificate="CN=machine"), is_new=True))
    assert refused(rig.do(RotateToken("machine", "cc"))) is Reason.NO_SECRET


def test_tokens_are_listed_in_pages(rig: Rig) -> None:
    for number in range(5):
        rig.do(SetToken(f"shop{number}", SHOP, is_new=True))
    page: Any = rig.do(ListTokens(4, 10))
    assert isinstance(page, TokenList)
    assert (page.total, [each.name for each in page.tokens]) == (6, ["shop3", "shop4"])


def test_a_snapshot_has_all_tokens(rig: Rig) -> None:
    rig.do(SetToken("shop", SHOP, is_new=True))
    restored = Rig().engine
    restored.restore(list(rig.engine.sections()))
    assert restored.tokens.by_name == rig.engine.tokens.by_name
    assert restored.tokens.admins == 1


def test_the_end_of_a_token_is_a_time_of_the_machine(rig: Rig) -> None:
    rig.ahead = 3600 * SECOND_NS
    soon = rig.wall() + 60 * SECOND_NS
    rig.do(SetToken("shop", replace(SHOP, expires=soon), is_new=True))
    assert soon - 60 * SECOND_NS <= found(rig, "shop").created < soon
    assert refused(rig.do(SetToken("shop", replace(SHOP, expires=rig.wall() - 1)))) is Reason.EXPIRES_IN_THE_PAST
    rig.do(RotateToken("shop", "cc", 10 * SECOND_NS))
    assert found(rig, "shop").old_until <= rig.wall() + 10 * SECOND_NS
