"""Messages whose bytes are damaged: what is set aside, what goes on, and how they come back or go."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import Reason
from penstock.limits import NEVER_NS, SEARCH_ROWS_MAX, SECOND_NS
from penstock.model.answers import Aside, Done, Pulled, Receipt, Redriven, Refused, StoredResult
from penstock.model.commands import (
    AwaitResult,
    Delete,
    DeleteQueue,
    Draw,
    NewMessage,
    Publish,
    PublishTopics,
    Pull,
    Redrive,
    Restore,
    SetAside,
    Settle,
)
from penstock.model.events import Damaged, Deleted, Expired, Succeeded
from penstock.model.lifecycle import DAMAGED
from penstock.model.settings import QueueSettings
from tests.support.engine_rig import Rig, state_of


@pytest.fixture
def rig() -> Rig:
    return Rig()


def extent(rig: Rig, message: Receipt) -> tuple[int, int]:
    row = rig.engine.queues[message.queue].rows.get(message.sequence)
    assert row is not None
    return row.position, row.position + row.body_bytes


def damage(rig: Rig, *messages: Receipt) -> Aside:
    answer = rig.do(SetAside(sorted(extent(rig, message) for message in messages)))
    assert isinstance(answer, Aside)
    return answer


def consistent(rig: Rig) -> bool:
    """Replay and snapshot give the same state as the engine that decided."""
    return state_of(rig.replayed()) == state_of(rig.engine) == state_of(rig.restored())


def pulled(rig: Rig, receiver: str = "r", **more: Any) -> list[int]:
    answer = rig.do(Pull(receiver, [Draw("kept", most=10, retries=1, fail_ns=SECOND_NS)], **more))
    assert isinstance(answer, Pulled)
    return [sequence for drawn in answer.drawn for sequence in drawn.sequences]


def test_only_messages_in_the_damaged_part_are_set_aside(rig: Rig) -> None:
    rig.create("work")
    messages = rig.publish("work", *[b"message %d" % number for number in range(10)])
    assert damage(rig, messages[3], messages[4]) == Aside(2, None)
    assert rig.describe("work").damaged == 2
    assert rig.describe("work").ready == 8
    assert rig.bodies("work") == [b"message %d" % number for number in range(10) if number not in (3, 4)]
    assert rig.describe("work").messages == 10
    assert consistent(rig)


def test_a_message_is_set_aside_once(rig: Rig) -> None:
    rig.create("work")
    (message,) = rig.publish("work", b"hello")
    assert damage(rig, message).messages == 1
    assert damage(rig, message).messages == 0


def test_an_empty_message_has_no_bytes_that_could_be_damaged(rig: Rig) -> None:
    rig.create("work")
    before, empty, after = rig.publish("work", b"before", b"", b"after")
    ranges = [(extent(rig, before)[0], extent(rig, after)[1])]
    assert rig.do(SetAside(ranges)) == Aside(2, None)
    assert [delivery.sequence for delivery in rig.fetch("work", 10)] == [empty.sequence]


def test_copies_are_set_aside_with_their_original(rig: Rig) -> None:
    rig.create("channel", topics=("fruit.*",))
    rig.do(PublishTopics([NewMessage(b"apple", topics=("fruit.red",))], QueueSettings()))
    assert damage(rig, Receipt(2, 1, True)).messages == 2
    assert (rig.describe("channel").damaged, rig.describe("fruit").damaged) == (1, 1)
    assert consistent(rig)


@pytest.mark.parametrize("waits", [0, 60])
def test_a_message_in_any_state_is_set_aside(rig: Rig, waits: int) -> None:
    rig.create("work", delay_ns=waits * SECOND_NS)
    messages = rig.publish("work", b"one", b"two")
    if not waits:
        rig.fetch("work")
    assert damage(rig, *messages).messages == 2
    rig.wait(3600)
    assert rig.fetch("work") == []
    assert rig.describe("work").damaged == 2
    assert consistent(rig)


def test_a_consumer_that_had_fetched_it_can_still_confirm_it(rig: Rig) -> None:
    rig.create("work")
    (message,) = rig.publish("work", b"hello")
    (delivery,) = rig.fetch("work", consumer="me")
    damage(rig, message)
    wrong = rig.do(Settle(1, 1, consumer="you", delivery=delivery.receives))
    assert isinstance(wrong, Refused)
    assert rig.do(Settle(1, 1, consumer="me", delivery=delivery.receives)) == Done()
    assert isinstance(rig.events[-1], Succeeded)
    assert rig.describe("work").messages == 0
    assert consistent(rig)


def test_it_cannot_be_given_back(rig: Rig) -> None:
    rig.create("work")
    (message,) = rig.publish("work", b"hello")
    (delivery,) = rig.fetch("work", consumer="me")
    damage(rig, message)
    answers = [rig.release(delivery), rig.do(Settle(1, 1, "retry", consumer="me"))]
    assert [isinstance(answer, Refused) and answer.reason for answer in answers] == [Reason.LEASE_GONE] * 2


def test_the_same_body_can_be_published_again(rig: Rig) -> None:
    rig.create("once", deduplication=True)
    (message,) = rig.publish("once", b"hello")
    assert not rig.publish("once", b"hello")[0].fresh
    damage(rig, message)
    assert rig.publish("once", b"hello")[0].fresh
    assert rig.bodies("once") == [b"hello"]
    assert consistent(rig)


def test_receivers_pass_over_it(rig: Rig) -> None:
    rig.create("kept", keep="all")
    messages = rig.publish("kept", b"one", b"two", b"three")
    damage(rig, messages[1])
    assert pulled(rig) == [1, 3]
    assert pulled(rig) == []
    assert consistent(rig)


def test_nothing_damaged_is_delivered_again_to_a_receiver(rig: Rig) -> None:
    rig.create("kept", keep="all")
    messages = rig.publish("kept", b"one", b"two")
    assert pulled(rig) == [1, 2]
    damage(rig, messages[0])
    rig.wait(5)
    assert pulled(rig) == [2]
    assert consistent(rig)


def test_results_stay_and_can_still_be_sent(rig: Rig) -> None:
    rig.create("kept", keep="all")
    (message,) = rig.publish("kept", b"one")
    for receiver in ("early", "late"):
        pulled(rig, receiver)
    pulled(rig, "early", results=[("kept", 1, b"done early")])
    damage(rig, message)
    pulled(rig, "late", results=[("kept", 1, b"done late")])
    for receiver in ("early", "late"):
        answer = rig.do(AwaitResult("kept", 1, receiver))
        assert isinstance(answer, StoredResult)
        assert rig.log.read(answer.position, answer.size) == b"done " + receiver.encode()
    assert consistent(rig)


def test_it_expires_like_any_other(rig: Rig) -> None:
    rig.create("work", retention_ns=60 * SECOND_NS)
    (message,) = rig.publish("work", b"hello")
    damage(rig, message)
    rig.wait(61)
    assert isinstance(rig.events[-1], Expired)
    assert rig.describe("work").messages == rig.describe("work").damaged == 0
    assert consistent(rig)


def test_it_is_not_moved_by_a_redrive(rig: Rig) -> None:
    rig.create("dead")
    rig.create("work")
    (message,) = rig.publish("dead", b"hello")
    damage(rig, message)
    assert rig.do(Redrive("dead", [1], "work")) == Redriven(0, 1)


def test_an_operator_deletes_it(rig: Rig) -> None:
    rig.create("work")
    (message,) = rig.publish("work", b"hello")
    damage(rig, message)
    assert rig.do(Delete(1, 1)) == Done()
    assert isinstance(rig.events[-1], Deleted)
    assert rig.engine.damaged == 0
    assert rig.do(Delete(1, 1)) == Refused(Reason.NO_MESSAGE)
    assert consistent(rig)


def test_what_a_consumer_has_is_not_deleted(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"hello")
    rig.fetch("work")
    assert rig.do(Delete(1, 1)) == Refused(Reason.LEASED)


def test_a_queue_that_is_removed_takes_it_along(rig: Rig) -> None:
    rig.create("work")
    damage(rig, *rig.publish("work", b"hello"))
    rig.do(DeleteQueue("work"))
    assert rig.engine.damaged == 0
    assert consistent(rig)


def test_what_can_be_read_again_is_delivered_again(rig: Rig) -> None:
    rig.create("work")
    rig.create("later", delay_ns=60 * SECOND_NS)
    ready, leased = rig.publish("work", b"ready", b"leased")
    (delayed,) = rig.publish("later", b"delayed")
    rig.fetch("work")
    damage(rig, ready, leased, delayed)
    rig.do(Restore([(1, 1), (1, 2), (2, 1), (9, 9)]))
    assert rig.engine.damaged == 0
    assert rig.bodies("work", confirm=False) == [b"leased"], "the lease of the other goes on"
    rig.wait(61)
    assert rig.bodies("work") == [b"ready"]
    assert rig.bodies("later") == [b"delayed"]
    assert consistent(rig)


def test_what_workers_were_done_with_goes_back_to_receivers_alone(rig: Rig) -> None:
    rig.create("kept", keep="all")
    (message,) = rig.publish("kept", b"one")
    rig.fetch("kept", confirm=False)
    damage(rig, message)
    rig.do(Restore([(1, 1)]))
    assert rig.fetch("kept") == []
    assert pulled(rig) == [1]
    assert consistent(rig)


def test_what_is_not_set_aside_is_not_taken_back(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"hello")
    before = len(rig.events)
    rig.do(Restore([(1, 1)]))
    assert len(rig.events) == before


def test_a_turn_looks_at_so_many_messages_and_says_where_to_go_on(rig: Rig) -> None:
    rig.create("work")
    count = SEARCH_ROWS_MAX + 1000
    rig.do(Publish("work", [NewMessage(b"x")] * count))
    damaged, after, turns = 0, (0, 0), 0
    while True:
        answer = rig.do(SetAside([(0, NEVER_NS)], after))
        assert isinstance(answer, Aside)
        damaged, turns = damaged + answer.messages, turns + 1
        if answer.after is None:
            break
        after = answer.after
    assert (damaged, turns) == (count, 2)
    assert all(type(event) is Damaged for event in rig.events[-1000:])
    assert {int(state) for _, rows in rig.engine.queues[1].rows.tables() for state in rows["state"]} == {DAMAGED}
