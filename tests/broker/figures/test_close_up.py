"""A queue that somebody looks at closely shows how long its messages waited, and its slowest consumers first."""

from __future__ import annotations

from typing import Any

from penstock.broker.figures.tally import NOTED, Tally
from penstock.broker.figures.waits import SHOWN_MAX, TAKEN, WINDOW_SECONDS, CloseUp
from penstock.engine.engine import Engine
from penstock.limits import SECOND_NS
from penstock.model.commands import Command, Fetch, NewMessage, Publish
from penstock.model.settings import QueueSettings


class Rig:
    """An engine with one queue, looked at closely from the first second on."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.tally = Tally()
        self.do(1, Publish("work", [NewMessage(b"m")] * 300, create=QueueSettings()))
        [self.queue] = self.engine.queues.values()
        self.tally.close_ups = {self.queue.number: CloseUp(self.queue, SECOND_NS)}

    def do(self, second: float, command: Command) -> None:
        for event in self.engine.decide(command, int(second * SECOND_NS)).events:
            if event.kind in NOTED:
                self.tally.note(event)
            self.engine.evolve(event, 0)

    def describe(self, second: float) -> dict[str, Any]:
        now, texts = int(second * SECOND_NS), self.engine.names.texts
        consumers = self.tally.consumers(self.queue, now, lambda number: texts[number], {})
        return self.tally.close_ups[self.queue.number].describe(now, consumers)


def test_waits_are_those_of_the_last_minute() -> None:
    rig = Rig()
    rig.do(3, Fetch("work"))
    assert rig.describe(4)["wait_p50"] == 2.0
    rig.do(11, Fetch("work", count=200))
    found = rig.describe(12)
    assert (found["wait_p50"], found["wait_p99"]) == (10.0, 10.0)
    later = rig.describe(12 + WINDOW_SECONDS)
    assert (later["wait_p50"], later["wait_p99"]) == (None, None)


def test_only_so_many_consumers_are_shown_and_the_oldest_lease_comes_first() -> None:
    rig = Rig()
    for number in range(SHOWN_MAX + 7):
        rig.do(2 + number / 100, Fetch("work", consumer=f"c{number}"))
    found = rig.describe(3)
    assert (len(found["consumers"]), found["more_consumers"]) == (SHOWN_MAX, 7)
    assert found["consumers"][0]["consumer"] == "c0"


def test_what_takes_messages_is_noted() -> None:
    assert TAKEN <= NOTED
