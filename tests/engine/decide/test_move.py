"""What an operator does: cancel, reschedule, redrive."""

from __future__ import annotations

import pytest

from penstock.errors import Reason
from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model.answers import Done, Receipt, Redriven, Refused, ScheduledAt
from penstock.model.commands import Cancel, DeleteQueue, NewMessage, Redrive, Reschedule
from penstock.model.events import Deleted, Moved, Rescheduled
from penstock.model.settings import RedrivePolicy
from tests.support.engine_rig import Rig, state_of


def delayed(rig: Rig, seconds: int = 60) -> Receipt:
    rig.create("later")
    (receipt,) = rig.publish("later", NewMessage(b"x", delay_ns=seconds * SECOND_NS))
    return receipt


def fallen(rig: Rig, *bodies: bytes) -> list[Receipt]:
    """Messages that went from `work` to `dead`."""
    rig.create("dead")
    rig.create("work", retries=1, redrive_policy=RedrivePolicy(5, "dead"), retention_ns=1000 * SECOND_NS)
    receipts = rig.publish("work", *bodies)
    for delivery in rig.fetch("work", len(bodies)):
        rig.release(delivery)
    assert rig.counts("dead") == (len(bodies), 0, 0)
    return receipts


def test_a_delayed_message_is_cancelled() -> None:
    rig = Rig()
    message = delayed(rig)
    assert rig.do(Cancel(message.queue, message.sequence)) == Done()
    assert isinstance(rig.events[-1], Deleted)
    assert rig.counts("later") == (0, 0, 0)
    assert rig.do(Cancel(message.queue, message.sequence)) == Refused(Reason.NO_MESSAGE)


@pytest.mark.parametrize("seconds", [5, 90])
def test_a_delayed_message_becomes_ready_at_its_new_time(seconds: int) -> None:
    rig = Rig()
    message = delayed(rig)
    at = rig.clock + seconds * SECOND_NS
    assert rig.do(Reschedule(message.queue, message.sequence, at)) == ScheduledAt(at)
    assert isinstance(rig.events[-1], Rescheduled)
    rig.clock = at - SECOND_NS
    assert rig.bodies("later") == []
    rig.clock = at
    assert rig.bodies("later") == [b"x"]


@pytest.mark.parametrize("ahead", [-3600, -10, 10, 3600])
def test_the_time_is_one_of_the_machine_even_while_the_clock_converges_to_it(ahead: int) -> None:
    rig = Rig()
    message = delayed(rig)
    rig.ahead = ahead * SECOND_NS
    for seconds, left in ((50, max(0, abs(ahead) - 5)), (100_000, 0)):
        at = rig.wall() + seconds * SECOND_NS
        shown = at + (left if ahead > 0 else -left) * SECOND_NS
        answer = rig.do(Reschedule(message.queue, message.sequence, at))
        assert answer == ScheduledAt(max(shown, rig.events[-1].time))
        message = rig.publish("later", NewMessage(b"x", delay_ns=SECOND_NS))[0]


def test_a_time_that_has_passed_is_now() -> None:
    rig = Rig()
    message = delayed(rig)
    assert rig.do(Reschedule(message.queue, message.sequence, 5)) == ScheduledAt(rig.events[-1].time)
    assert rig.bodies("later") == [b"x"]


def test_only_what_is_delayed_can_be_rescheduled() -> None:
    rig = Rig()
    rig.create("now")
    (message,) = rig.publish("now", b"x")
    for command in (Cancel(message.queue, 1), Reschedule(message.queue, 1, NEVER_NS)):
        assert rig.do(command) == Refused(Reason.NOT_DELAYED)
    rig.fetch("now")
    for command in (Cancel(message.queue, 1), Reschedule(message.queue, 1, NEVER_NS)):
        assert rig.do(command) == Refused(Reason.NOT_DELAYED)


def test_a_dead_letter_that_its_last_consumer_still_has_is_left_alone() -> None:
    rig = Rig()
    rig.create("dead")
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"))
    (message,) = rig.publish("work", b"x")
    (delivery,) = rig.fetch("work", consumer="me")
    assert rig.do(Cancel(message.queue, message.sequence)) == Refused(Reason.NOT_DELAYED)
    assert rig.do(Redrive("dead", [1])) == Redriven(0, 1)
    assert rig.finish(delivery, consumer="me") == Done()


def test_dead_letters_go_back_to_where_they_came_from() -> None:
    rig = Rig()
    receipts = fallen(rig, b"a", b"b", b"c")
    rig.publish("dead", b"from nowhere")
    assert rig.do(Redrive("dead", [1, 3, 4, 99])) == Redriven(2, 2)
    assert [type(event) for event in rig.events[-2:]] == [Moved, Moved]
    assert (rig.counts("dead"), rig.counts("work")) == ((2, 0, 0), (2, 0, 0))
    deliveries = rig.fetch("work", 5)
    assert [each.body for each in deliveries] == [b"a", b"c"]
    # The ids go on working, and the count of receives begins anew.
    assert [(each.queue, each.sequence, each.receives) for each in deliveries] == [
        (receipts[0].queue, receipts[0].sequence, 1),
        (receipts[2].queue, receipts[2].sequence, 1),
    ]
    assert rig.finish(receipts[0]) == Done()
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_messages_go_to_another_queue_and_take_its_retention() -> None:
    rig = Rig()
    fallen(rig, b"a", b"b")
    rig.create("elsewhere", retention_ns=7 * SECOND_NS)
    assert rig.do(Redrive("dead", [1, 2], "elsewhere")) == Redriven(2, 0)
    row = rig.engine.queues[3].rows.get(1)
    assert row is not None
    assert row.expires_at == rig.engine.time + 7 * SECOND_NS
    assert rig.bodies("elsewhere") == [b"a", b"b"]


def test_a_message_whose_queue_is_gone_stays() -> None:
    rig = Rig()
    fallen(rig, b"a")
    rig.do(DeleteQueue("work"))
    assert rig.do(Redrive("dead", [1])) == Redriven(0, 1)
    assert rig.counts("dead") == (1, 0, 0)


def test_redrives_may_go_round() -> None:
    rig = Rig()
    (receipt,) = fallen(rig, b"a")
    for number in range(1, 4):
        assert rig.do(Redrive("dead", [number])) == Redriven(1, 0)
        (delivery,) = rig.fetch("work")
        assert (delivery.queue, delivery.sequence) == (receipt.queue, receipt.sequence)
        rig.release(delivery)
    assert rig.engine.moved == {(receipt.queue, receipt.sequence): (1, 4)}


def test_unknown_queues_are_refused() -> None:
    rig = Rig()
    rig.create("dead")
    assert rig.do(Redrive("none", [1])) == Refused(Reason.NO_QUEUE, "none")
    assert rig.do(Redrive("dead", [1], "none")) == Refused(Reason.NO_QUEUE, "none")
