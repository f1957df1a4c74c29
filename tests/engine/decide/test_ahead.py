"""Messages that are fetched ahead: a delivery counts from its beginning."""

from __future__ import annotations

import pytest

from penstock.limits import RUN_MESSAGES_MIN, SECOND_NS, UNBEGUN_MAX
from penstock.model.answers import Delivery, Found
from penstock.model.commands import Criteria, Extend, Search, Settle
from penstock.model.events import DeadLettered, Extended, Failed, FetchedRun, TimedOut
from tests.support.engine_rig import Rig, state_of

LEASE_SECONDS = 30


def begin(rig: Rig, delivery: Delivery) -> None:
    rig.do(Extend(delivery.queue, delivery.sequence, LEASE_SECONDS * SECOND_NS, begun=True))


def reason_of(rig: Rig, queue: str) -> str:
    answer = rig.do(Search(Criteria(queue=queue), (0, 0), 1))
    assert isinstance(answer, Found)
    return answer.messages[0].reason


@pytest.mark.parametrize("count", [1, RUN_MESSAGES_MIN])
def test_a_lease_that_ends_before_its_beginning_gives_the_count_back(rig: Rig, count: int) -> None:
    rig.create("work", retries=1)
    rig.publish("work", *[b"m"] * count)
    assert [each.receives for each in rig.fetch("work", count, ahead=True)] == [1] * count
    rig.wait(LEASE_SECONDS)
    timed_out = [event for event in rig.events if isinstance(event, TimedOut)]
    assert {(event.ahead, event.receives, event.reason) for event in timed_out} == {(True, 0, b"never begun")}
    assert [each.receives for each in rig.fetch("work", count)] == [1] * count
    rig.wait(LEASE_SECONDS)
    assert sum(isinstance(event, Failed) for event in rig.events) == count


def test_from_its_beginning_it_counts(rig: Rig) -> None:
    rig.create("work", retries=1)
    rig.publish("work", b"m")
    [delivery] = rig.fetch("work", ahead=True)
    begin(rig, delivery)
    begin(rig, delivery)
    assert [event.begun for event in rig.events if isinstance(event, Extended)] == [True, False]
    rig.wait(LEASE_SECONDS)
    assert isinstance(rig.events[-1], Failed)


def test_a_lease_that_is_extended_has_not_begun(rig: Rig) -> None:
    rig.create("work", retries=1)
    rig.publish("work", b"m")
    [delivery] = rig.fetch("work", ahead=True)
    rig.do(Extend(delivery.queue, delivery.sequence, SECOND_NS))
    rig.wait(2)
    assert rig.bodies("work") == [b"m"]


@pytest.mark.parametrize("begun", [True, False])
def test_what_is_given_back_counts_unless_its_consumer_says_that_it_was_not_begun(rig: Rig, begun: bool) -> None:
    rig.create("work")
    rig.publish("work", b"m")
    [delivery] = rig.fetch("work", ahead=True)
    rig.do(Settle(delivery.queue, delivery.sequence, "retry", begun=begun))
    assert rig.fetch("work")[0].receives == 1 + begun


def test_what_has_begun_counts_whatever_its_consumer_says(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"m")
    [delivery] = rig.fetch("work", ahead=True)
    begin(rig, delivery)
    rig.do(Settle(delivery.queue, delivery.sequence, "retry", begun=False))
    assert rig.fetch("work")[0].receives == 2


def end_leases(rig: Rig, times: int) -> None:
    for _ in range(times):
        assert [each.receives for each in rig.fetch("work", ahead=True)] == [1]
        rig.wait(LEASE_SECONDS)


def test_after_ten_times_in_a_row_it_is_a_dead_letter(rig: Rig) -> None:
    rig.with_dead_letters(max_receives=3)
    rig.publish("work", b"m")
    end_leases(rig, UNBEGUN_MAX)
    assert rig.counts("work") == (1, 0, 0)
    end_leases(rig, 1)
    assert rig.counts("dead") == (1, 0, 0)
    assert reason_of(rig, "dead") == "never begun"


def test_after_ten_times_in_a_row_it_counts_where_there_is_no_dead_letter_queue(rig: Rig) -> None:
    rig.create("work", retries=2)
    rig.publish("work", b"m")
    end_leases(rig, UNBEGUN_MAX + 1)
    assert rig.fetch("work")[0].receives == 2


def test_a_beginning_ends_the_row(rig: Rig) -> None:
    rig.with_dead_letters(max_receives=100)
    rig.publish("work", b"m")
    end_leases(rig, UNBEGUN_MAX)
    [delivery] = rig.fetch("work", ahead=True)
    begin(rig, delivery)
    rig.do(Settle(delivery.queue, delivery.sequence, "retry"))
    for _ in range(UNBEGUN_MAX):
        assert [each.receives for each in rig.fetch("work", ahead=True)] == [2]
        rig.wait(LEASE_SECONDS)
    assert rig.counts("work") == (1, 0, 0)


def test_the_last_delivery_becomes_a_dead_letter_when_it_ends_and_not_when_it_is_fetched(rig: Rig) -> None:
    rig.with_dead_letters(max_receives=1)
    rig.publish("work", b"m", b"n")
    first, second = rig.fetch("work", 2, ahead=True)
    assert rig.counts("dead") == (0, 0, 0)
    begin(rig, first)
    begin(rig, second)
    rig.finish(first)
    rig.do(Settle(second.queue, second.sequence, "retry", reason=b"no"))
    assert isinstance(rig.events[-1], DeadLettered)
    assert reason_of(rig, "dead") == "no"


def test_a_consumer_that_knows_that_no_other_delivery_would_help_makes_a_dead_letter(rig: Rig) -> None:
    rig.with_dead_letters(max_receives=10)
    rig.publish("work", b"m")
    [delivery] = rig.fetch("work", ahead=True)
    rig.do(Settle(delivery.queue, delivery.sequence, "failed", reason=b"never"))
    assert isinstance(rig.events[-1], DeadLettered)
    assert reason_of(rig, "dead") == "never"


def test_without_a_dead_letter_queue_it_is_dropped_and_its_reason_is_in_the_log(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"m")
    [delivery] = rig.fetch("work")
    rig.do(Settle(delivery.queue, delivery.sequence, "failed", reason=b"never"))
    event = rig.events[-1]
    assert isinstance(event, Failed)
    assert event.reason == b"never"
    assert rig.counts("work") == (0, 0, 0)


def test_many_are_leased_in_one_event_with_a_dead_letter_queue_too(rig: Rig) -> None:
    rig.with_dead_letters(max_receives=1)
    rig.publish("work", *[b"m"] * RUN_MESSAGES_MIN)
    rig.fetch("work", RUN_MESSAGES_MIN, ahead=True)
    assert isinstance(rig.events[-1], FetchedRun)


def test_a_replay_and_a_snapshot_know_what_has_begun(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", *[b"m"] * (RUN_MESSAGES_MIN + 2))
    begun, *_ = rig.fetch("work", RUN_MESSAGES_MIN, ahead=True)
    rig.fetch("work", 1, ahead=True)
    begin(rig, begun)
    expected = state_of(rig.engine)
    assert state_of(rig.replayed()) == state_of(rig.restored()) == expected
