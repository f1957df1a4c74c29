"""What becomes of a job after its function has returned or raised."""

from __future__ import annotations

import pytest

from penstock.limits import RESULT_BYTES_MAX
from penstock.worker.errors import LeaseLost, Reject, Retry, TimeLimit
from penstock.worker.outcome import AT_ONCE_SECONDS, Outcome, Stopping, raised, returned


def test_what_a_function_returns_is_the_result() -> None:
    assert returned("add", {"sum": 3}) == Outcome("success", '{"sum":3}')


def test_a_result_that_is_not_json_fails_without_another_attempt() -> None:
    outcome = returned("add", object())
    assert (outcome.what, outcome.error) == (
        "invalid",
        "the result of add cannot be stored as JSON: Encoding objects of type object is unsupported",
    )


@pytest.mark.parametrize("result", [float("nan"), {"mean": [1.0, float("-inf"), None]}])
def test_a_number_that_json_does_not_have_fails_without_another_attempt(result: object) -> None:
    outcome = returned("mean", result)
    assert outcome.what == "invalid"
    assert outcome.error.startswith("the result of mean cannot be stored as JSON: JSON has no number ")


def test_a_result_with_none_in_it_is_stored() -> None:
    assert returned("mean", [None, 1.5]) == Outcome("success", "[null,1.5]")


def test_a_result_that_is_too_large_fails_without_another_attempt() -> None:
    outcome = returned("read", "ß" * RESULT_BYTES_MAX)
    assert outcome.what == "invalid"
    assert outcome.error == "the result of read has 2097154 bytes; at most 1048576 are stored"


@pytest.mark.parametrize(
    ("error", "what", "delay"),
    [
        (ValueError("no"), "retry", None),
        (TimeLimit("late"), "retry", None),
        (Retry(), "retry", None),
        (Retry(delay=60), "retry", 60),
        (Retry(delay=0), "retry", AT_ONCE_SECONDS),
        (Stopping(), "retry", AT_ONCE_SECONDS),
        (Reject("never"), "invalid", None),
        (KeyError("never"), "invalid", None),
        (LeaseLost("gone"), "lost", None),
    ],
)
def test_an_error_decides_whether_there_is_another_attempt(error: Exception, what: str, delay: float | None) -> None:
    outcome = raised(error, (KeyError,))
    assert (outcome.what, outcome.delay) == (what, delay)
    assert outcome.error.startswith(type(error).__name__)
