"""Hand-made histories: those that violate a rule about messages, and those beside them that do not."""

from __future__ import annotations

from penstock.torture.checker import Checker
from penstock.torture.checker.messages import FORGOTTEN_SECONDS, SETTLED_SECONDS
from penstock.torture.history import AnyEvent, Finished, Finishing, GivingBack, Sent, Started, Stored, Taken

LEASE = 5.0


def broken(*events: AnyEvent, closed: bool = False) -> list[str]:
    checker = Checker({"frail": "dead"}, kept_seconds=180)
    for event in events:
        checker.observe(event)
    if closed:
        checker.close(events[-1].at + 1)
    return [each.rule for each in checker.violations]


def sent(at: float = 0, name: str = "p.1", queue: str = "work", lives: float = 0) -> Sent:
    return Sent(at, name, "p", queue, lives=lives)


def stored(at: float = 0.1, name: str = "p.1") -> Stored:
    return Stored(at, name, "p")


def taken(at: float, name: str = "p.1", queue: str = "work", asked_at: float | None = None) -> Taken:
    return Taken(at, name, "c", queue, at - 0.01 if asked_at is None else asked_at, LEASE)


def finish(at: float, name: str = "p.1") -> tuple[Finishing, Finished]:
    return Finishing(at, name, "c"), Finished(at + 0.01, name, "c")


def test_an_acknowledged_message_that_is_gone_in_the_end_is_lost() -> None:
    assert broken(sent(), stored(), closed=True) == ["nothing-lost"]
    assert broken(sent(), stored(), taken(1), closed=True) == ["nothing-lost"]
    assert not broken(sent(), stored(), taken(1), *finish(2), closed=True)


def test_a_message_without_an_acknowledgement_may_be_gone() -> None:
    assert not broken(sent(), closed=True)


def test_a_finish_without_an_answer_may_have_happened() -> None:
    assert not broken(sent(), stored(), taken(1), Finishing(2, "p.1", "c"), closed=True)
    assert not broken(sent(), stored(), taken(1), Finishing(2, "p.1", "c"), taken(9), closed=True)


def test_a_message_that_expires_may_be_gone() -> None:
    assert not broken(sent(lives=3), stored(), closed=True)


def test_a_message_may_not_come_after_its_finish_was_acknowledged() -> None:
    assert broken(sent(), stored(), taken(1), *finish(2), taken(9)) == ["finished-stays-finished"]


def test_a_delivery_asked_for_before_the_finish_was_acknowledged_may_come_after_it() -> None:
    assert not broken(sent(), stored(), taken(1), *finish(8), taken(8.2, asked_at=7.9))


def test_a_finish_is_remembered_when_it_has_been_folded() -> None:
    late = SETTLED_SECONDS + 20
    other = (sent(late, "p.2"), sent(late + 10, "p.3"))
    assert broken(sent(), stored(), taken(1), *finish(2), *other, taken(late + 20)) == ["finished-stays-finished"]


def test_a_message_in_doubt_that_has_been_folded_may_come() -> None:
    late = FORGOTTEN_SECONDS + 20
    assert not broken(sent(), sent(late, "p.2"), sent(late + 10, "p.3"), taken(late + 20))


def test_two_consumers_may_not_hold_a_message_at_once() -> None:
    assert broken(sent(), stored(), taken(1), taken(3)) == ["one-lease"]
    assert not broken(sent(), stored(), taken(1), taken(1 + LEASE))


def test_a_message_that_is_given_back_may_come_at_once() -> None:
    assert not broken(sent(), stored(), taken(1), GivingBack(1.5, "p.1", "c"), taken(1.6))


def test_a_lease_may_end_early_when_the_broker_starts_with_a_clock_that_was_set() -> None:
    assert not broken(sent(), stored(), taken(1), Started(2, "broker", 0.6, jumped=True), taken(3))
    assert broken(sent(), stored(), taken(1), Started(2, "broker", 0.6), taken(3)) == ["one-lease"]


def test_what_is_delivered_was_sent_to_that_queue_or_moved_from_it() -> None:
    assert broken(taken(1, "nobody.1")) == ["content-intact"]
    assert broken(sent(), stored(), taken(1, queue="other")) == ["content-intact"]
    assert not broken(sent(queue="frail"), stored(), taken(1, queue="dead"))


def test_a_body_is_delivered_as_it_was_sent() -> None:
    spoilt = Taken(1, "p.1", "c", "work", 0.9, LEASE, sound=False)
    assert broken(sent(), stored(), spoilt) == ["content-intact"]


def test_memory_does_not_grow_with_what_is_settled() -> None:
    checker = Checker({}, kept_seconds=180)
    for number in range(1, 5000):
        name, at = f"p.{number}", float(number)
        for event in (sent(at, name), stored(at, name), taken(at + 0.1, name), *finish(at + 0.2, name)):
            checker.observe(event)
    assert not checker.violations
    assert len(checker.messages.lives) < SETTLED_SECONDS + 20
    assert checker.messages.finished.count == 1
