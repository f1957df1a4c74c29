"""Messages that their consumers confirm."""

from __future__ import annotations

from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Done, Refused
from penstock.model.commands import (
    Finish,
    NewMessage,
    Release,
)
from penstock.model.events import (
    Succeeded,
)
from tests.support.engine_rig import Rig

DONE = Done()


def test_a_finished_message_is_gone(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work", consumer="me")
    assert rig.finish(delivery, result=b"42") == DONE
    event = rig.events[-1]
    assert isinstance(event, Succeeded)
    assert (event.result, event.receives, rig.engine.names.texts[event.consumer]) == (b"42", 1, "me")
    assert rig.describe("work").messages == 0
    assert rig.finish(delivery) == Refused(Reason.NO_MESSAGE)
    rig.wait(100)
    assert rig.bodies("work") == []


def test_without_a_consumer_anyone_finishes_in_any_state(rig: Rig) -> None:
    rig.create("work")
    ready, delayed = rig.publish("work", b"ready", NewMessage(b"delayed", delay_ns=SECOND_NS))
    assert rig.finish(ready) == DONE
    assert rig.finish(delayed) == DONE
    rig.wait(2)
    assert rig.counts("work") == (0, 0, 0)


def test_only_the_consumer_with_the_lease_finishes_in_its_own_name(rig: Rig) -> None:
    rig.create("work", visibility_ns=10 * SECOND_NS)
    rig.publish("work", b"one")
    [delivery] = rig.fetch("work", consumer="me")
    assert rig.finish(delivery, consumer="you") == Refused(Reason.LEASE_GONE)
    rig.wait(11)
    assert rig.finish(delivery, consumer="me") == Refused(Reason.LEASE_GONE)
    rig.fetch("work", consumer="you")
    assert rig.finish(delivery, consumer="me") == Refused(Reason.LEASE_GONE)
    assert rig.finish(delivery, consumer="you") == DONE


def test_a_message_nobody_has_taken_is_finished_in_nobodys_name(rig: Rig) -> None:
    rig.create("work")
    ready, delayed = rig.publish("work", b"ready", NewMessage(b"delayed", delay_ns=SECOND_NS))
    for receipt in (ready, delayed):
        assert rig.finish(receipt, consumer="me") == Refused(Reason.LEASE_GONE)
        assert rig.finish(receipt, consumer="") == Refused(Reason.LEASE_GONE)


def test_what_was_never_published_cannot_be_finished_or_released(rig: Rig) -> None:
    rig.create("work")
    for command in (Finish(1, 1), Finish(9, 1), Release(1, 1), Release(9, 1)):
        assert rig.do(command) == Refused(Reason.NO_MESSAGE)
