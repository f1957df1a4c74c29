"""Consumers have their pace: what they take, for how long they hold a message, what they give back."""

from __future__ import annotations

import pytest

from penstock.broker.figures import paces as module
from penstock.broker.figures.paces import NOTED, WINDOW_SECONDS, Paces
from penstock.engine.engine import Engine
from penstock.limits import SECOND_NS
from penstock.model.commands import Command, Extend, Fetch, Finish, NewMessage, Publish, Release
from penstock.model.consumers import Consumer
from penstock.model.kinds import Kind
from penstock.model.settings import QueueSettings


class Rig:
    """An engine with one queue, whose consumers are counted from the first second on."""

    def __init__(self) -> None:
        self.engine = Engine()
        self.paces = Paces()
        self.do(1, Publish("work", [NewMessage(b"m")] * 300, create=QueueSettings()))
        [self.queue] = self.engine.queues.values()

    def do(self, second: float, command: Command) -> None:
        for event in self.engine.decide(command, int(second * SECOND_NS)).events:
            if event.kind in NOTED:
                self.paces.note(event)
            self.engine.evolve(event, 0)

    def consumers(self, second: float, *waiting: str | None) -> dict[str | None, Consumer]:
        texts = self.engine.names.texts
        found = self.paces.consumers(
            self.queue, int(second * SECOND_NS), SECOND_NS, lambda number: texts[number], waiting
        )
        return {each.consumer: each for each in found}


def test_what_is_noted_takes_or_settles_messages() -> None:
    assert {
        *(Kind.FETCHED, Kind.HANDED_OVER, Kind.DELIVERED, Kind.HANDED_TO_RECEIVER),
        *(Kind.SUCCEEDED, Kind.RESULT_STORED, Kind.RETRIED, Kind.TIMED_OUT, Kind.GIVEN_BACK),
        *(Kind.FAILED, Kind.DEAD_LETTERED, Kind.FAILED_FOR_ALL, Kind.SENT_AS_DEAD),
        *(Kind.INVALID, Kind.NOT_INTERESTED, Kind.INVALID_FOR_ONE, Kind.NOT_INTERESTED_FOR_ONE),
    } == NOTED


def test_each_consumer_has_what_it_takes_a_minute_what_it_holds_and_whether_it_waits() -> None:
    rig = Rig()
    rig.do(2, Fetch("work", consumer="slow"))
    rig.do(20, Fetch("work", count=5, consumer="quick"))
    rig.do(31, Fetch("work", count=100, consumer="quick"))
    assert rig.consumers(31, "idle", "idle", "quick") == {
        "slow": Consumer("slow", "work", taken_per_minute=2.0, leases=1, oldest_lease=2.0),
        "quick": Consumer("quick", "work", taken_per_minute=210.0, leases=105, oldest_lease=20.0, waiting=1),
        "idle": Consumer("idle", "work", waiting=2),
    }


def test_the_time_of_a_message_is_from_its_delivery_until_it_is_settled_whatever_was_extended() -> None:
    rig = Rig()
    rig.do(2, Fetch("work", consumer="slow"))
    rig.do(20, Extend(rig.queue.number, 1, 60 * SECOND_NS))
    rig.do(30, Finish(rig.queue.number, 1))
    rig.do(31, Fetch("work", count=2, consumer="quick"))
    rig.do(32, Finish(rig.queue.number, 2))
    rig.do(35, Finish(rig.queue.number, 3))
    found = rig.consumers(40)
    assert (found["slow"].seconds_p50, found["slow"].seconds_p99, found["slow"].leases) == (28.0, 28.0, 0)
    assert (found["quick"].seconds_p50, found["quick"].seconds_p99) == (2.5, 3.97)


def test_messages_that_are_given_back_are_counted_and_the_next_delivery_begins_anew() -> None:
    rig = Rig()
    rig.do(2, Fetch("work", consumer="ada"))
    rig.do(5, Release(rig.queue.number, 1))
    rig.do(6, Fetch("work", consumer="ada"))
    [ada] = rig.consumers(61).values()
    assert (ada.retried_per_minute, ada.seconds_p50, ada.oldest_lease) == (1.0, 3.0, 6.0)


def test_what_was_a_minute_ago_is_forgotten_and_so_is_who_did_nothing_since() -> None:
    rig = Rig()
    rig.do(2, Fetch("work", consumer="ada"))
    rig.do(3, Finish(rig.queue.number, 1))
    assert rig.consumers(4)["ada"].seconds_p50 == 1.0
    assert rig.consumers(10 + WINDOW_SECONDS) == {}


def test_an_extension_does_not_make_a_lease_younger_that_was_seen_before() -> None:
    rig = Rig()
    rig.do(2, Fetch("work", consumer="slow"))
    rig.paces = Paces()  # Somebody looks from now on.
    assert rig.consumers(3)["slow"].oldest_lease == 2.0
    rig.do(20, Extend(rig.queue.number, 1, 60 * SECOND_NS))
    assert rig.consumers(21)["slow"].oldest_lease == 2.0


def test_more_consumers_than_are_counted_apart_count_as_one_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONSUMERS_MAX", 2)
    rig = Rig()
    for second, name in enumerate(("a", "b", "c", "d"), 2):
        rig.do(second, Fetch("work", consumer=name))
    found = rig.consumers(61)
    assert {name: each.taken_per_minute for name, each in found.items()} == {"a": 1, "b": 1, "c": 0, "d": 0, None: 2}


def test_only_so_many_leases_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASES_MAX", 2)
    rig = Rig()
    rig.do(2, Fetch("work", count=3, consumer="ada"))
    rig.do(4, Finish(rig.queue.number, 1))
    assert rig.consumers(5)["ada"].seconds_p50 is None, "the first one is forgotten"
    rig.do(6, Finish(rig.queue.number, 3))
    assert rig.consumers(7)["ada"].seconds_p50 == 4.0
