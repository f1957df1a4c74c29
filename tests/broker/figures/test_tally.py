"""The tally counts what happens to messages, while it is wanted."""

from __future__ import annotations

from penstock.broker.figures.tally import COUNTED, Tallied
from penstock.broker.writer.loop import Loop
from penstock.model.commands import Fetch, NewMessage, Publish, Release
from penstock.model.kinds import Kind
from tests.support.live_loop import ask, live


def test_deliveries_retries_and_failures_are_counted_and_nothing_else() -> None:
    assert {kind for kind, place in COUNTED.items() if place == 0} == {
        *(Kind.FETCHED, Kind.HANDED_OVER, Kind.DELIVERED, Kind.HANDED_TO_RECEIVER),
    }
    assert {kind for kind, place in COUNTED.items() if place == 1} == {Kind.RETRIED, Kind.TIMED_OUT, Kind.GIVEN_BACK}
    assert {kind for kind, place in COUNTED.items() if place == 2} == {
        *(Kind.FAILED, Kind.DEAD_LETTERED, Kind.FAILED_FOR_ALL, Kind.SENT_AS_DEAD),
    }


@live
async def test_events_count_while_somebody_watches(loop: Loop) -> None:
    await ask(loop, Publish("work", [NewMessage(b"m")] * 3))
    [queue] = loop.engine.queues
    await ask(loop, Fetch("work"))
    assert loop.tally.of(queue) == Tallied()
    loop.tally.begin()
    await ask(loop, Fetch("work", count=2))
    await ask(loop, Release(queue, 2))
    assert loop.tally.of(queue) == Tallied(delivered=2, retried=1)
    loop.tally.end()
    assert loop.tally.of(queue) == Tallied()
