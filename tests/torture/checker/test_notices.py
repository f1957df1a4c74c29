"""Hand-made histories of notices."""

from __future__ import annotations

import pytest

from penstock.torture.checker.notices import LATE_SECONDS
from penstock.torture.history import Finished, Finishing, Noticed, Sent, SessionCut, Stored, Taken, Unexpected
from tests.torture.checker.test_messages import broken


def notices(*each: str, at: float = 1) -> list[Noticed]:
    return [Noticed(at + number / 10, "p.1", "s", notice) for number, notice in enumerate(each)]


@pytest.mark.parametrize("life", [("sync", "assign", "finish"), ("sync", "assign", "retry", "assign", "drop")])
def test_notices_follow_the_life_of_a_message(life: tuple[str, ...]) -> None:
    assert not broken(*notices(*life))


@pytest.mark.parametrize(
    "life",
    [
        ("assign",),
        ("sync", "retry"),
        ("sync", "assign", "assign"),
        ("sync", "assign", "finish", "retry"),
        ("sync", "assign", "drop", "assign"),
        ("sync", "sync"),
        ("refused", "assign"),
    ],
)
def test_notices_that_no_life_has_violate_the_rule(life: tuple[str, ...]) -> None:
    assert broken(*notices(*life)) == ["notices-follow"]


def test_notices_may_be_missing_after_a_cut_but_none_comes_after_the_last() -> None:
    cut = SessionCut(2, "s")
    assert not broken(*notices("sync"), cut, *notices("retry", "assign", at=3))
    assert broken(*notices("sync", "assign", "finish"), cut, *notices("assign", at=3)) == ["notices-follow"]


def test_the_first_notice_may_be_lost_in_a_cut_too() -> None:
    sent = Sent(0, "p.1", "s", "work", promise="notices")
    assert not broken(sent, SessionCut(0.5, "s"), *notices("assign"))
    assert broken(sent, SessionCut(0.5, "another"), *notices("assign")) == ["notices-follow"]


def test_the_notice_of_a_finish_comes() -> None:
    life = (Sent(0, "p.1", "p", "work"), Stored(0.1, "p.1", "p"), Taken(1, "p.1", "c", "work", 0.9, 5))
    finish = (Finishing(2, "p.1", "c"), Finished(2.1, "p.1", "c"))
    later = Sent(3 + LATE_SECONDS, "p.2", "p", "work")
    assert broken(*life, *notices("sync", "assign"), *finish, later) == ["notices-follow"]
    assert not broken(*life, *notices("sync", "assign"), *finish, *notices("finish", at=3), later)
    assert not broken(*life, *notices("sync", "assign"), SessionCut(1.5, "s"), *finish, later)


def test_an_answer_that_no_page_names_violates_a_rule() -> None:
    assert broken(Unexpected(1, "mqs-c", "500")) == ["known-answers"]
