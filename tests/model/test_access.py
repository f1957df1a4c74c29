"""Scopes, and what an identity with some of them may do."""

from __future__ import annotations

import re
from fnmatch import translate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.limits import ACCESS_KNOWN_MAX
from penstock.model.access import ADMIN, EVERYTHING, NOBODY, Access, Verb, matches, scope_of

LETTERS = st.text(alphabet="ab.*", max_size=8)


def may(*scopes: str) -> Access:
    return Access("somebody", map(scope_of, scopes))


@given(LETTERS, LETTERS)
def test_a_pattern_covers_what_a_regular_expression_of_it_covers(pattern: str, name: str) -> None:
    assert matches(pattern, name) == bool(re.fullmatch(translate(pattern), name))


@pytest.mark.parametrize("name", ["a?c", "[a]", "a\nc", "a.c"])
def test_only_the_star_is_a_wildcard(name: str) -> None:
    assert matches(name, name)
    assert matches("*", name)
    assert not matches(name, "abc")


def test_a_star_in_a_name_is_covered_only_by_a_star_of_the_pattern() -> None:
    assert matches("orders*", "orders.*")
    assert not matches("orders.eu", "orders.*")


def test_a_long_pattern_is_compared_in_little_time() -> None:
    assert not matches("*a" * 100, "a" * 99 + "b")


@given(st.sets(st.sampled_from(Verb), min_size=1), st.lists(st.text("ab*", min_size=1), min_size=1, unique=True))
def test_a_scope_is_what_its_text_says(verbs: set[Verb], names: list[str]) -> None:
    scope = scope_of(f"{','.join(verbs)}:{','.join(names)}")
    assert scope.verbs == frozenset(verbs)
    assert scope.names == tuple(names)
    assert scope_of(scope.text) == scope


def test_a_scope_without_names_is_for_every_name() -> None:
    assert scope_of("admin") == ADMIN
    assert scope_of("read").text == "read:*"


@pytest.mark.parametrize(
    "text", ["", ":", "write:a", "publish:", "publish:a,,b", "publish;a", "read:\ud800", "read:" + "x" * 251]
)
def test_what_is_no_scope_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="scope"):
        scope_of(text)


def test_a_verb_is_allowed_on_the_names_of_its_scope() -> None:
    access = may("publish,consume:orders*,jobs", "read:reports")
    allowed = [(Verb.PUBLISH, "orders"), (Verb.CONSUME, "orders.eu"), (Verb.PUBLISH, "jobs"), (Verb.READ, "reports")]
    refused = [(Verb.READ, "orders"), (Verb.PUBLISH, "jobs2"), (Verb.PUBLISH, "reports"), (Verb.ADMIN, "orders")]
    assert all(access.may(*each) for each in allowed)
    assert not any(access.may(*each) for each in refused)


def test_admin_includes_every_verb_and_manage_does_not() -> None:
    assert all(may("admin").may(verb, "orders") for verb in Verb)
    assert [verb for verb in Verb if may("manage:*").may(verb, "orders")] == [Verb.MANAGE]


def test_the_brokers_own_names_are_only_read_and_only_by_those_named_for_it() -> None:
    for verb in (Verb.PUBLISH, Verb.CONSUME, Verb.MANAGE):
        assert not may("admin", f"{verb}:_*").may(verb, "_audit")
    assert may("admin").reads("_audit")
    assert may("read:_audit").reads("_audit")
    assert may("read:_*").reads("_audit")
    assert not may("read:*").reads("_audit")


def test_a_list_shows_what_somebody_reads_consumes_or_manages() -> None:
    access = may("publish:a", "consume:b", "read:c", "manage:d")
    assert [name for name in "abcde" if access.sees(name)] == ["b", "c", "d"]
    assert not access.sees_all
    assert may("admin").sees_all


def test_messages_of_a_forgotten_queue_are_for_those_who_read_all() -> None:
    assert may("read:*").reads(None)
    assert not may("read:a*").reads(None)


def test_without_tokens_everyone_may_do_all_and_a_guest_nothing() -> None:
    assert all(EVERYTHING.may(verb, "_audit") for verb in Verb)
    assert not any(NOBODY.may(verb, "orders") for verb in Verb)


def test_what_is_remembered_is_bounded() -> None:
    access = may("read:a*")
    for number in range(2 * ACCESS_KNOWN_MAX):
        assert access.reads(f"a{number}")
        assert not access.reads(f"b{number}")
    assert len(access._known) <= ACCESS_KNOWN_MAX
