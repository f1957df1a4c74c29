"""Messages that workers lease, or take for good."""

from __future__ import annotations

from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Refused
from penstock.model.commands import (
    Fetch,
)
from penstock.model.events import (
    HandedOver,
    Retried,
    TimedOut,
)
from tests.support.engine_rig import Rig


def test_a_leased_message_is_not_delivered_again_before_its_time(rig: Rig) -> None:
    rig.create("work", visibility_ns=30 * SECOND_NS)
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work", consumer="me")
    assert delivery.visible_at == rig.engine.time + 30 * SECOND_NS
    assert rig.counts("work") == (0, 1, 0)
    rig.wait(29)
    assert rig.bodies("work") == []


def test_a_lease_that_ran_out_is_retried_and_counted(rig: Rig) -> None:
    rig.create("work", visibility_ns=30 * SECOND_NS)
    rig.publish("work", b"one", b"two")
    rig.fetch("work")
    rig.wait(31)
    assert isinstance(rig.events[-1], TimedOut)
    again = rig.fetch("work", 2)
    assert [(each.body, each.receives) for each in again] == [(b"two", 1), (b"one", 2)]


def test_a_client_may_choose_the_length_of_its_lease(rig: Rig) -> None:
    rig.create("work", visibility_ns=30 * SECOND_NS)
    rig.publish("work", b"one")
    rig.fetch("work", lease_ns=2 * SECOND_NS)
    rig.wait(3)
    assert rig.bodies("work") == [b"one"]


def test_two_leases_that_end_at_the_same_moment_are_settled_once(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"first", b"one")
    rig.fetch("work", lease_ns=5 * SECOND_NS)
    [delivery] = rig.fetch("work", lease_ns=60 * SECOND_NS)
    rig.release(delivery)
    [again] = rig.fetch("work", lease_ns=delivery.visible_at - rig.now())
    assert again.visible_at == delivery.visible_at
    rig.wait(70)
    returned = [type(event) for event in rig.events if isinstance(event, Retried)]
    assert returned == [Retried, TimedOut, TimedOut]  # The first was given back.
    assert rig.counts("work") == (2, 0, 0)


def test_a_fetch_takes_as_many_as_there_are_and_no_more_than_asked(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", *[b"%d" % number for number in range(5)])
    assert len(rig.fetch("work", 3)) == 3
    assert len(rig.fetch("work", 3)) == 2
    assert rig.do(Fetch("work", 3)) == ()


def test_a_kicked_message_is_gone_without_a_confirmation(rig: Rig) -> None:
    rig.create("work", redrive_policy=None)
    rig.publish("work", b"one", b"two")
    deliveries = rig.fetch("work", 1, confirm=False)
    assert [each.body for each in deliveries] == [b"one"]
    assert isinstance(rig.events[-1], HandedOver)
    assert rig.finish(deliveries[0]) == Refused(Reason.NO_MESSAGE)
    assert rig.counts("work") == (1, 0, 0)


def test_a_kick_never_moves_a_message_to_the_dead_letters(rig: Rig) -> None:
    rig.with_dead_letters(max_receives=1)
    rig.publish("work", b"one")
    rig.fetch("work", confirm=False)
    assert rig.describe("dead").last_sequence == 0
