"""Hand-made histories of receivers: their order, their gaps, and their results."""

from __future__ import annotations

from penstock.torture.checker.receivers import BACK_SECONDS
from penstock.torture.history import Fault, Pulled, Pulling, ResultRead, ResultSent, ResultStored, Started
from tests.torture.checker.test_messages import broken

FAIL = 5.0


def pull(
    at: float, *sequences: int, name: str = "m", fail: float = 0.0, about: str = "kept/r"
) -> tuple[Pulling, Pulled]:
    messages = {sequence: f"{name}.{sequence}" for sequence in sequences}
    return Pulling(at, about), Pulled(at + 0.1, about, at, messages, fail)


def test_a_receiver_gets_messages_without_gaps() -> None:
    assert not broken(*pull(1, 1, 2), *pull(2, 3))
    assert broken(*pull(1, 1, 2), *pull(2, 4)) == ["no-gaps"]


def test_a_pull_without_an_answer_may_have_taken_messages() -> None:
    assert not broken(*pull(1, 1), Pulling(2, "kept/r"), *pull(3, 4))
    assert broken(*pull(1, 1), Pulling(2, "kept/r"), *pull(3, 4), *pull(4, 6)) == ["no-gaps"]


def test_messages_that_have_expired_may_be_missing() -> None:
    assert not broken(*pull(1, 1), *pull(300, 9))


def test_damaged_messages_may_be_missing_until_they_are_restored() -> None:
    flip, restored = Fault(2, "broker", "flip", "a byte"), Fault(5, "broker", "flip", "restored")
    assert not broken(*pull(1, 1), flip, *pull(3, 3), restored, *pull(6, 4))
    assert broken(*pull(1, 1), flip, restored, *pull(6, 2), *pull(7, 4)) == ["no-gaps"]


def test_a_sequence_is_one_message_for_all_receivers() -> None:
    assert broken(*pull(1, 1), *pull(2, 1, name="other", about="kept/s")) == ["no-gaps"]


def test_a_receiver_never_goes_back() -> None:
    assert broken(*pull(1, 1), Pulling(2, "kept/r"), *pull(3, 3), *pull(4, 2)) == ["in-order"]


def test_a_receiver_without_results_gets_a_message_once() -> None:
    assert broken(*pull(1, 1), *pull(20, 1)) == ["once-per-receiver"]


def test_a_message_comes_again_when_its_result_is_late_and_not_before() -> None:
    assert not broken(*pull(1, 1, fail=FAIL), *pull(8, 1, fail=FAIL))
    assert broken(*pull(1, 1, fail=FAIL), *pull(3, 1, fail=FAIL)) == ["once-per-receiver"]
    jump = Started(2, "broker", 0.6, jumped=True)
    assert not broken(*pull(1, 1, fail=FAIL), jump, *pull(3, 1, fail=FAIL))


def test_a_message_does_not_come_again_after_its_result() -> None:
    result = (ResultSent(2, "kept/r", 1, "x"), ResultStored(2.1, "kept/r", 1))
    assert broken(*pull(1, 1, fail=FAIL), *result, *pull(9, 1, fail=FAIL)) == ["once-per-receiver"]
    assert not broken(*pull(1, 1, fail=FAIL), result[0], *pull(9, 1, fail=FAIL))


def test_what_a_lost_answer_had_comes_again_to_a_receiver_that_owes_results() -> None:
    lost = (*pull(1, 1, fail=FAIL), Pulling(2, "kept/r"), *pull(3, 3, fail=FAIL))
    assert not broken(*lost, *pull(9, 2, fail=FAIL), *pull(BACK_SECONDS + 9, 4, fail=FAIL))
    assert broken(*lost, *pull(BACK_SECONDS + 9, 4, fail=FAIL)) == ["nothing-lost"]


def test_what_comes_again_does_not_tell_what_a_lost_answer_had() -> None:
    again = (*pull(1, 1, fail=FAIL), Pulling(2, "kept/r"), *pull(9, 1, fail=FAIL), *pull(10, 3, fail=FAIL))
    assert not broken(*again, *pull(16, 2, fail=FAIL))
    assert broken(*again, *pull(11, 5, fail=FAIL)) == ["no-gaps"]


def test_an_acknowledged_result_can_be_read() -> None:
    known = (*pull(1, 1, fail=FAIL), ResultSent(2, "kept/r", 1, "x"), ResultStored(2.1, "kept/r", 1))
    assert not broken(*known, ResultRead(3, "kept/r", 1, "x", 2.9))
    assert broken(*known, ResultRead(3, "kept/r", 1, None, 2.9)) == ["results-kept"]
    assert broken(*known, ResultRead(3, "kept/r", 1, "y", 2.9)) == ["results-kept"]


def test_the_first_result_counts() -> None:
    two = (*pull(1, 1, fail=FAIL), ResultSent(2, "kept/r", 1, "x"), ResultSent(3, "kept/r", 1, "y"))
    read = ResultRead(4, "kept/r", 1, "x", 3.9)
    assert not broken(*two, read, ResultRead(5, "kept/r", 1, "x", 4.9))
    assert broken(*two, read, ResultRead(5, "kept/r", 1, "y", 4.9)) == ["results-kept"]
