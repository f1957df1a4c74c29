"""A queue that somebody looks at closely shows how long its messages waited, and how its consumers are doing."""

from __future__ import annotations

from typing import Any

from penstock.engine.engine import Engine
from penstock.limits import SECOND_NS
from penstock.model.commands import Command, Extend, Fetch, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.server.close_up import SHOWN_MAX, TAKEN, WINDOW_SECONDS, CloseUp


class Rig:
    """An engine with one queue, looked at closely from the first second on."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.do(1, Publish("work", [NewMessage(b"m")] * 300, create=QueueSettings()))
        [self.queue] = self.engine.queues.values()
        self.close_up = CloseUp(self.queue, SECOND_NS)

    def do(self, second: float, command: Command) -> None:
        for event in self.engine.decide(command, int(second * SECOND_NS)).events:
            if event.kind in TAKEN:
                self.close_up.note(event)
            self.engine.evolve(event, 0)

    def describe(self, second: float, *waiting: str | None) -> dict[str, Any]:
        texts = self.engine.names.texts
        return self.close_up.describe(int(second * SECOND_NS), lambda number: texts[number], waiting)


def test_waits_are_those_of_the_last_minute() -> None:
    rig = Rig()
    rig.do(3, Fetch("work"))
    assert rig.describe(4)["wait_p50"] == 2.0
    rig.do(11, Fetch("work", count=200))
    found = rig.describe(12)
    assert (found["wait_p50"], found["wait_p99"]) == (10.0, 10.0)
    later = rig.describe(12 + WINDOW_SECONDS)
    assert (later["wait_p50"], later["wait_p99"]) == (None, None)


def test_each_consumer_has_its_pace_and_its_oldest_lease_comes_first() -> None:
    rig = Rig()
    rig.do(2, Fetch("work", consumer="slow"))
    rig.do(20, Fetch("work", count=5, consumer="quick"))
    rig.do(31, Fetch("work", count=100, consumer="quick"))
    slow, quick, idle = rig.describe(31, "idle", "idle", "quick")["consumers"]
    assert slow == {"consumer": "slow", "taken_per_minute": 2.0, "leases": 1, "oldest_lease": 2.0, "waiting": 0}
    assert quick == {
        "consumer": "quick",
        "taken_per_minute": 210.0,
        "leases": 105,
        "oldest_lease": 20.0,
        "waiting": 1,
    }
    assert idle == {"consumer": "idle", "taken_per_minute": 0.0, "leases": 0, "oldest_lease": None, "waiting": 2}


def test_an_extension_does_not_make_a_lease_younger() -> None:
    rig = Rig()
    rig.do(2, Fetch("work", consumer="slow"))
    rig.describe(3)
    rig.do(20, Extend(rig.queue.number, 1, 60 * SECOND_NS))
    assert rig.describe(21)["consumers"][0]["oldest_lease"] == 2.0


def test_only_so_many_consumers_are_shown() -> None:
    rig = Rig()
    for number in range(SHOWN_MAX + 7):
        rig.do(2 + number / 100, Fetch("work", consumer=f"c{number}"))
    found = rig.describe(3)
    assert (len(found["consumers"]), found["more_consumers"]) == (SHOWN_MAX, 7)
    assert found["consumers"][0]["consumer"] == "c0"
