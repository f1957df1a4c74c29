"""Messages whose lease ends without a confirmation: retries and dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Done, Found, LeasedUntil, Redriven, Refused
from penstock.model.commands import (
    Cancel,
    Delete,
    DeleteQueue,
    Extend,
    ListScheduled,
    NewMessage,
    Redrive,
    Release,
    Settle,
    UpdateQueue,
)
from penstock.model.events import (
    DeadLettered,
    Expired,
    Failed,
    Rescheduled,
    Retried,
    Succeeded,
    TimedOut,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.engine_rig import Rig, state_of

DONE = Done()


# ── Releasing and retries ────────────────────────────────────────────────────────────────────────────────────


def test_a_released_message_is_ready_at_once_behind_those_that_wait(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one", b"two")
    [delivery] = rig.fetch("work")
    assert rig.release(delivery) == DONE
    assert rig.bodies("work") == [b"two", b"one"]


def test_a_message_released_with_a_delay_waits(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one")
    rig.release(rig.fetch("work")[0], delay_ns=5 * SECOND_NS)
    assert rig.counts("work") == (0, 0, 1)
    rig.wait(4)
    assert rig.bodies("work") == []
    rig.wait(1)
    assert rig.bodies("work") == [b"one"]


def test_only_a_leased_message_can_be_released(rig: Rig) -> None:
    rig.create("work")
    [receipt] = rig.publish("work", b"one")
    assert rig.release(receipt) == Refused(Reason.LEASE_GONE)
    [delivery] = rig.fetch("work", consumer="me")
    assert rig.release(delivery, consumer="you") == Refused(Reason.LEASE_GONE)
    assert rig.release(delivery, consumer="me") == DONE
    assert rig.release(delivery) == Refused(Reason.LEASE_GONE)


@pytest.mark.parametrize("by", ["time", "release"])
def test_a_message_is_dropped_when_its_retries_are_used_up(rig: Rig, by: str) -> None:
    rig.create("work", retries=2, visibility_ns=SECOND_NS)
    rig.publish("work", b"one")
    for _ in range(2):
        [delivery] = rig.fetch("work")
        if by == "time":
            rig.wait(2)
        else:
            rig.release(delivery)
    assert isinstance(rig.events[-1], Failed)
    assert rig.describe("work").messages == 0


def test_a_message_finished_on_its_last_try_is_not_dropped(rig: Rig) -> None:
    rig.create("work", retries=1, visibility_ns=SECOND_NS)
    rig.publish("work", b"one")
    assert rig.finish(rig.fetch("work")[0]) == DONE
    rig.wait(5)
    assert isinstance(rig.events[-1], Succeeded)


def test_used_up_retries_lead_to_the_dead_letters_where_there_is_a_policy(rig: Rig) -> None:
    rig.with_dead_letters(max_receives=100, retries=1, visibility_ns=SECOND_NS)
    rig.publish("work", b"one", b"two")
    rig.fetch("work", 2)
    rig.wait(2)
    moves = [event for event in rig.events if isinstance(event, DeadLettered)]
    assert [(event.fetched, event.to_sequence) for event in moves] == [(False, 1), (False, 2)]
    assert rig.counts("work") == (0, 0, 0)
    assert rig.bodies("dead") == [b"one", b"two"]


# ── Dead letters ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_last_delivery_and_the_move_are_one_event(rig: Rig) -> None:
    rig.with_dead_letters(max_receives=2, visibility_ns=SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work")
    rig.wait(2)
    before = len(rig.events)
    [delivery] = rig.fetch("work")
    [event] = rig.events[before:]
    assert isinstance(event, DeadLettered)
    assert event.fetched
    assert (delivery.receives, delivery.visible_at) == (2, event.visible_at)
    assert rig.describe("work").messages == 0
    assert rig.counts("dead") == (0, 0, 1)


def test_a_moved_message_shows_only_after_its_last_lease(rig: Rig) -> None:
    rig.with_dead_letters(visibility_ns=10 * SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work")
    rig.wait(9)
    assert rig.bodies("dead") == []
    rig.wait(1)
    [delivery] = rig.fetch("dead")
    assert (delivery.body, delivery.receives) == (b"one", 1)


def test_a_message_finished_during_its_last_lease_never_shows_in_the_dead_letters(rig: Rig) -> None:
    rig.with_dead_letters()
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work", consumer="me")
    assert rig.finish(delivery, consumer="you") == Refused(Reason.LEASE_GONE)
    assert rig.finish(delivery, consumer="me") == DONE
    rig.wait(100)
    assert rig.describe("dead").messages == 0
    assert not rig.engine.moved
    assert not rig.engine.origins


@pytest.mark.parametrize("command", [Release, Settle])
def test_a_message_given_back_during_its_last_lease_is_ready_in_the_dead_letters(
    rig: Rig, command: type[Release | Settle]
) -> None:
    rig.with_dead_letters()
    options = {} if command is Release else {"outcome": "retry"}
    for body, delay_ns in ((b"at once", 0), (b"later", 5 * SECOND_NS)):
        rig.publish("work", body)
        [delivery] = rig.fetch("work", consumer="me")
        told = [type(event) for event in rig.events]
        place = (delivery.queue, delivery.sequence)
        assert rig.do(command(*place, consumer="you", **options)) == Refused(Reason.LEASE_GONE)  # type: ignore[arg-type]
        given = {"consumer": "me", "delivery": 1, "delay_ns": delay_ns, **options}
        assert rig.do(command(*place, **given)) == DONE  # type: ignore[arg-type]
        assert [type(event) for event in rig.events] == [*told, Rescheduled]  # Its failure was told before.
        assert rig.do(command(*place, consumer="me", **options)) == Refused(Reason.LEASE_GONE)  # type: ignore[arg-type]
    assert rig.bodies("dead") == [b"at once"]
    rig.wait(5)
    assert rig.bodies("dead") == [b"later"]
    assert state_of(rig.replayed()) == state_of(rig.engine)


@pytest.mark.parametrize("delivery", [None, 1])
@pytest.mark.parametrize("command", [Release, Settle])
def test_a_consumer_without_a_name_gives_its_last_delivery_back_once(
    rig: Rig, command: type[Release | Settle], delivery: int | None
) -> None:
    rig.with_dead_letters()
    options: dict[str, Any] = {} if command is Release else {"outcome": "retry"}
    rig.publish("work", b"one")
    [taken] = rig.fetch("work")
    place = (taken.queue, taken.sequence)
    assert rig.do(command(*place, delivery=1, consumer="me", **options)) == Refused(Reason.LEASE_GONE)
    assert isinstance(rig.do(Extend(*place, 5 * SECOND_NS, delivery=delivery)), LeasedUntil)
    assert rig.do(command(*place, delivery=delivery, delay_ns=9 * SECOND_NS, **options)) == DONE
    for late in (
        command(*place, delivery=delivery, **options),
        Extend(*place, SECOND_NS, delivery=delivery),
        Settle(*place, "success", delivery=1),
    ):
        assert rig.do(late) == Refused(Reason.LEASE_GONE)
    assert state_of(rig.replayed()) == state_of(rig.restored()) == state_of(rig.engine)
    rig.wait(8)
    assert rig.bodies("dead") == []
    rig.wait(1)
    assert rig.bodies("dead") == [b"one"]


def test_what_a_consumer_without_a_name_holds_as_a_dead_letter_is_neither_scheduled_nor_free(rig: Rig) -> None:
    rig.with_dead_letters()
    rig.publish("work", b"one")
    [taken] = rig.fetch("work")
    place = (taken.queue, taken.sequence)
    for engine in (rig.engine, rig.replayed(), rig.restored()):
        assert engine.decide(Delete(*place), now=rig.now()).answer == Refused(Reason.LEASED)
        assert engine.decide(Cancel(*place), now=rig.now()).answer == Refused(Reason.NOT_DELAYED)
        assert engine.decide(Redrive("dead", [1]), now=rig.now()).answer == Redriven(0, 1)
        found = engine.decide(ListScheduled("dead", limit=10), now=rig.now()).answer
        assert isinstance(found, Found)
        assert found.messages == []


def test_a_message_that_nobody_has_had_is_not_given_back_whatever_delivery_is_named(rig: Rig) -> None:
    rig.with_dead_letters()
    [receipt] = rig.publish("work", NewMessage(b"later", delay_ns=5 * SECOND_NS))
    place = (receipt.queue, receipt.sequence)
    assert rig.do(Settle(*place, "retry", delivery=1)) == Refused(Reason.LEASE_GONE)
    assert rig.do(Extend(*place, SECOND_NS, delivery=1)) == Refused(Reason.LEASE_GONE)


def test_the_id_of_a_moved_message_finds_it_in_either_queue(rig: Rig) -> None:
    rig.with_dead_letters(visibility_ns=SECOND_NS)
    [receipt] = rig.publish("work", b"one")
    rig.publish("dead", b"other")
    rig.fetch("work")
    rig.wait(2)
    other, delivery = rig.fetch("dead", 2)
    assert other.body == b"other"
    assert (delivery.queue, delivery.sequence) == (receipt.queue, receipt.sequence)
    found = rig.engine.find(receipt.queue, receipt.sequence)
    assert found is not None
    assert (found[0].name, found[1]) == ("dead", 2)
    assert rig.finish(receipt) == DONE
    assert rig.finish(receipt) == Refused(Reason.NO_MESSAGE)
    assert rig.describe("dead").messages == 1


def test_dead_letters_of_dead_letters_keep_their_id(rig: Rig) -> None:
    rig.create("last")
    rig.create("dead", redrive_policy=RedrivePolicy(1, "last"), visibility_ns=SECOND_NS)
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"), visibility_ns=SECOND_NS)
    [receipt] = rig.publish("work", b"one")
    place = (receipt.queue, receipt.sequence)
    for name in ("work", "dead", "last"):
        [delivery] = rig.fetch(name)
        assert (delivery.body, delivery.queue, delivery.sequence) == (b"one", *place)
        rig.wait(2)
    for engine in (rig.engine, rig.replayed(), rig.restored()):
        found = engine.find(*place)
        assert found is not None
        assert found[0].name == "last"
        assert engine.moved == {place: (1, 1)}
        assert engine.origins == {(1, 1): place}


def test_a_queue_may_be_its_own_dead_letter_queue(rig: Rig) -> None:
    rig.create("work", visibility_ns=SECOND_NS)
    rig.do(UpdateQueue("work", QueueSettings(visibility_ns=SECOND_NS, redrive_policy=RedrivePolicy(1, "work"))))
    [receipt] = rig.publish("work", b"one")
    for round_number in range(1, 4):
        [delivery] = rig.fetch("work")
        assert (delivery.sequence, rig.describe("work").last_sequence) == (1, 1 + round_number)
        rig.wait(2)
    assert rig.finish(receipt) == DONE
    assert rig.describe("work").messages == 0
    rig.do(DeleteQueue("work"))


def test_several_queues_may_share_their_dead_letters_in_one_tick(rig: Rig) -> None:
    rig.create("dead")
    for name in ("a", "b", "c"):
        rig.create(name, redrive_policy=RedrivePolicy(9, "dead"), retries=1, visibility_ns=SECOND_NS)
        rig.publish(name, b"1", b"2")
        rig.fetch(name, 2)
    rig.wait(5)
    assert sorted(event.to_sequence for event in rig.events if isinstance(event, DeadLettered)) == [1, 2, 3, 4, 5, 6]
    assert rig.counts("dead") == (6, 0, 0)


def test_a_dead_letter_lives_as_long_as_its_new_queue_says(rig: Rig) -> None:
    rig.create("dead", retention_ns=50 * SECOND_NS)
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"), retention_ns=10 * SECOND_NS, visibility_ns=SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work")
    rig.wait(30)
    assert rig.describe("dead").messages == 1
    rig.wait(30)
    assert isinstance(rig.events[-1], Expired)
    assert rig.describe("dead").messages == 0


def test_deleting_the_dead_letter_queue_loses_what_has_moved_there(rig: Rig) -> None:
    rig.with_dead_letters()
    [receipt] = rig.publish("work", b"one")
    rig.fetch("work")
    rig.do(DeleteQueue("dead"))
    assert rig.finish(receipt) == Refused(Reason.NO_MESSAGE)
    assert not rig.engine.moved
    assert not rig.engine.origins
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_deleting_the_first_queue_leaves_its_dead_letters_findable(rig: Rig) -> None:
    rig.with_dead_letters()
    [receipt] = rig.publish("work", b"one")
    rig.fetch("work")
    rig.do(DeleteQueue("work"))
    assert rig.finish(receipt) == DONE
    assert rig.describe("dead").messages == 0


def test_a_dead_letter_counts_as_content_of_its_new_queue(rig: Rig) -> None:
    rig.create("dead", deduplication=True)
    rig.create("work", deduplication=True, redrive_policy=RedrivePolicy(1, "dead"))
    [receipt] = rig.publish("work", b"same")
    rig.fetch("work")
    [again] = rig.publish("dead", b"same")
    assert (again.queue, again.sequence, again.fresh) == (receipt.queue, receipt.sequence, False)
    assert rig.publish("work", b"same")[0].fresh


def test_a_dead_letter_that_is_there_already_does_not_shadow_the_first(rig: Rig) -> None:
    rig.create("dead", deduplication=True)
    rig.create("work", deduplication=True, redrive_policy=RedrivePolicy(1, "dead"))
    [first] = rig.publish("dead", b"same")
    [moved] = rig.publish("work", b"same")
    rig.fetch("work")
    assert rig.finish(moved) == DONE
    for engine in (rig.replayed(), rig.restored(), rig.engine):
        rig.engine = engine
        [receipt] = rig.publish("dead", b"same")
        assert (receipt.queue, receipt.sequence, receipt.fresh) == (first.queue, first.sequence, False)


# ── How long a message waits before its next delivery ────────────────────────────────────────────────────


def waits(rig: Rig, queue: str, times: int) -> list[float]:
    """How long a message waits after each of its deliveries, all of which its consumer lets run out."""
    found = []
    for _ in range(times):
        assert len(rig.fetch(queue, 1)) == 1
        rig.wait(30)
        event = rig.events[-1]
        assert isinstance(event, TimedOut)
        found.append((event.visible_at - event.time) / SECOND_NS)
        rig.wait(found[-1])
    return found


@pytest.mark.parametrize(
    ("growth", "expected"),
    [("fixed", [10, 10, 10, 10]), ("linear", [10, 20, 30, 35]), ("exponential", [10, 20, 35, 35])],
)
def test_the_delay_grows_with_each_delivery_up_to_its_limit(growth: str, expected: list[float]) -> None:
    rig = Rig()
    rig.create("q", retry_delay_ns=10 * SECOND_NS, retry_backoff=growth, retry_delay_max_ns=35 * SECOND_NS)
    rig.publish("q", b"x")
    assert waits(rig, "q", 4) == expected


def test_a_message_is_hidden_until_its_delay_is_over() -> None:
    rig = Rig()
    rig.create("q", retry_delay_ns=10 * SECOND_NS)
    rig.publish("q", b"x")
    rig.release(*rig.fetch("q", 1))
    assert isinstance(rig.events[-1], Retried)
    assert rig.counts("q") == (0, 0, 1)
    rig.wait(9)
    assert rig.bodies("q") == []
    rig.wait(1)
    assert rig.bodies("q") == [b"x"]


def test_without_a_delay_a_message_is_ready_at_once() -> None:
    rig = Rig()
    rig.create("q", retry_backoff="exponential", retry_jitter=1.0)
    rig.publish("q", b"x")
    assert waits(rig, "q", 3) == [0, 0, 0]


def test_the_delay_that_a_consumer_asks_for_counts_instead() -> None:
    rig = Rig()
    rig.create("q", retry_delay_ns=10 * SECOND_NS)
    rig.publish("q", b"x")
    rig.release(*rig.fetch("q", 1), delay_ns=3 * SECOND_NS)
    rig.wait(3)
    assert rig.bodies("q") == [b"x"]


def test_jitter_spreads_messages_that_failed_together_and_takes_off_no_more_than_its_share() -> None:
    rig = Rig()
    rig.create("q", retry_delay_ns=10 * SECOND_NS, retry_jitter=0.4)
    rig.publish("q", *[b"%d" % number for number in range(100)])
    assert len(rig.fetch("q", 100)) == 100
    rig.wait(30)
    delays = {event.visible_at - event.time for event in rig.events if isinstance(event, TimedOut)}
    assert len(delays) == 100
    assert 6 * SECOND_NS <= min(delays) < 7 * SECOND_NS
    assert 9 * SECOND_NS < max(delays) <= 10 * SECOND_NS
