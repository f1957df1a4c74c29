"""What time brings about: lifetimes, leases and delays that end."""

from __future__ import annotations

from penstock.errors import Reason
from penstock.limits import NEVER_NS, SECOND_NS, TICK_EVENTS_MAX
from penstock.model.answers import Refused
from penstock.model.commands import (
    Extend,
    Fetch,
    NewMessage,
    Receive,
    Tick,
)
from penstock.model.events import (
    Expired,
    Fetched,
)
from tests.support.engine_rig import Rig

# ── Lifetimes ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_past_its_retention_expires(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS)
    rig.publish("work", b"one", NewMessage(b"short", expires_ns=SECOND_NS), NewMessage(b"long", expires_ns=NEVER_NS))
    rig.wait(2)
    assert rig.describe("work").messages == 2
    rig.wait(10)
    assert [event.sequence for event in rig.events if isinstance(event, Expired)] == [2, 1]
    assert rig.bodies("work") == [b"long"]


def test_a_message_expires_while_it_is_leased(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS, visibility_ns=60 * SECOND_NS)
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work")
    rig.wait(11)
    assert isinstance(rig.events[-1], Expired)
    assert rig.finish(delivery) == Refused(Reason.NO_MESSAGE)
    rig.wait(100)
    assert rig.describe("work").messages == 0


def test_a_message_expires_while_it_is_delayed(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS, delay_ns=20 * SECOND_NS)
    rig.publish("work", b"one")
    rig.wait(11)
    assert rig.describe("work").messages == 0
    rig.wait(20)
    assert rig.bodies("work") == []


def test_a_message_whose_lease_and_life_end_together_only_expires(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work", lease_ns=5 * SECOND_NS)
    rig.clock += 60 * SECOND_NS
    rig.settle()
    assert [type(event) for event in rig.events[-2:]] == [Fetched, Expired]


def test_where_several_confirm_a_lease_and_a_life_that_end_together_only_expire(rig: Rig) -> None:
    rig.create("work", retention_ns=10 * SECOND_NS, visibility_ns=5 * SECOND_NS, confirmations=2)
    rig.publish("work", b"one")
    row = rig.engine.queues[1].rows.get(1)
    assert row is not None
    rig.do(Receive("work", "a", 1))
    rig.do(Extend(1, 1, row.expires_at - rig.now(), "a"))
    assert [type(event) for event in rig.engine.decide(Tick(), now=row.expires_at - 1).events] == []
    assert [type(event) for event in rig.engine.decide(Tick(), now=row.expires_at).events] == [Expired]


def test_an_expired_message_is_not_delivered_even_before_the_tick(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", NewMessage(b"short", expires_ns=SECOND_NS), b"other")
    rig.clock += 2 * SECOND_NS
    decision = rig.engine.decide(Fetch("work", 1), now=rig.now())
    assert [delivery.sequence for delivery in decision.answer] == [2]  # type: ignore[union-attr]


# ── Time ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tick_settles_a_bounded_number_and_the_rest_follows(rig: Rig) -> None:
    rig.create("work", visibility_ns=SECOND_NS)
    count = TICK_EVENTS_MAX + 500
    rig.publish("work", *[b""] * count)
    rig.fetch("work", count)
    rig.clock += 2 * SECOND_NS
    assert len(rig.engine.decide(Tick(), now=rig.now()).events) == TICK_EVENTS_MAX
    rig.settle()
    assert rig.engine.next_deadline <= rig.now()
    rig.settle()
    assert rig.counts("work") == (count, 0, 0)
    assert rig.engine.next_deadline == NEVER_NS


def test_many_delays_that_end_together_mature_in_bounded_steps(rig: Rig) -> None:
    rig.create("work", delay_ns=SECOND_NS)
    count = TICK_EVENTS_MAX + 500
    rig.publish("work", *[b""] * count)
    rig.clock += 2 * SECOND_NS
    assert rig.engine.advance(rig.clock) == [1]
    assert rig.engine.next_deadline <= rig.clock
    assert rig.engine.advance(rig.clock) == [1]
    assert rig.counts("work") == (count, 0, 0)


def test_nothing_is_due_when_nothing_waits(rig: Rig) -> None:
    assert rig.engine.next_deadline == NEVER_NS
    rig.create("work")
    [first, _] = rig.publish("work", b"one", b"two")
    assert rig.engine.next_deadline == NEVER_NS
    rig.release(rig.fetch("work")[0])
    rig.finish(first)
    rig.wait(100)
    assert rig.engine.next_deadline == NEVER_NS
