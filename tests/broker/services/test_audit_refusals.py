"""Which refusals are records of their own, and which are counted."""

from __future__ import annotations

from penstock.broker.services.audit import Refusal, Refusals
from penstock.limits import AUDIT_REFUSALS_MAX, AUDIT_WINDOW_SECONDS, SECOND_NS
from penstock.model.audit import Actor

_MINUTE = AUDIT_WINDOW_SECONDS * SECOND_NS
_ANN = Actor("ann", "token", "10.0.0.7", "native")


def refusal(target: str = "orders", code: str = "forbidden") -> Refusal:
    return Refusal(_ANN, "queue.delete", target, code)


def test_the_first_is_recorded_and_those_of_the_same_minute_are_counted() -> None:
    refusals = Refusals()
    assert [refusals.is_first(refusal(), second) for second in (0, 1, 2)] == [True, False, False]
    assert refusals.ended(_MINUTE - 1) == []
    assert refusals.ended(_MINUTE) == [(refusal(), 2, 0)]
    assert refusals.is_first(refusal(), _MINUTE)


def test_one_that_does_not_come_again_is_not_counted() -> None:
    refusals = Refusals()
    refusals.is_first(refusal(), 0)
    assert refusals.ended(_MINUTE) == []
    assert refusals.is_first(refusal(), _MINUTE)


def test_different_targets_and_codes_are_kept_apart() -> None:
    refusals = Refusals()
    assert refusals.is_first(refusal(), 0)
    assert refusals.is_first(refusal(target="jobs"), 0)
    assert refusals.is_first(refusal(code="no_queue"), 0)


def test_a_flood_of_different_targets_is_one_record() -> None:
    refusals = Refusals()
    first = [refusals.is_first(refusal(str(number)), 0) for number in range(10_000)]
    assert sum(first) == AUDIT_REFUSALS_MAX
    (counted,) = refusals.ended(_MINUTE)
    assert counted.refusal == Refusal(Actor("(several)", "", "", ""), "queue.delete", "", "forbidden")
    assert counted.times == 10_000 - AUDIT_REFUSALS_MAX


def test_at_the_end_everything_is_reported() -> None:
    refusals = Refusals()
    for _ in range(3):
        refusals.is_first(refusal(), 0)
    assert refusals.ended(None) == [(refusal(), 2, 0)]
    assert refusals.ended(None) == []
