"""The last hour: one sample after the other, gaps are gaps, and memory is bounded."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.broker.services import hour as module
from penstock.broker.services.hour import FIVE_MINUTES, MINUTE, SAMPLES, Hour, Trend
from penstock.model.figures import Figures

IDLE = Figures("idle", False, False, 0, 0, 0, 0, 0, None, 0, 0.0, 0.0, None, None, None)
BUSY = replace(IDLE, name="busy", ready=3, entered=1.5, left=0.5, delivered=0.5, retried=0.0, failed=0.0)


def test_samples_come_back_in_order_with_their_times() -> None:
    hour = Hour()
    for second in (10.0, 20.0, 30.0):
        hour.add(second, [replace(BUSY, ready=int(second))])
    assert hour.times() == [10.0, 20.0, 30.0]
    found = hour.of("busy")
    assert found is not None
    assert found["ready"] == [10, 20, 30]
    assert found["in"] == [1.5, 1.5, 1.5]


def test_a_time_without_a_sample_is_a_gap() -> None:
    hour = Hour()
    hour.add(10.0, [BUSY])
    hour.add(20.0, [])
    hour.add(30.0, [replace(BUSY, delivered=None)])
    found = hour.of("busy")
    assert found is not None
    assert found["ready"] == [3, None, 3]
    assert found["delivered"] == [0.5, None, None]
    assert hour.of_all({"busy"}, {"busy"})["ready"] == [3, None, 3]


def test_the_oldest_sample_makes_room() -> None:
    hour = Hour()
    for number in range(SAMPLES + 5):
        hour.add(float(number), [replace(BUSY, ready=number)])
    found = hour.of("busy")
    assert found is not None
    assert (hour.times()[0], len(hour.times()), found["ready"][0], found["ready"][-1]) == (5.0, 360, 5, 364)
    assert hour.ready_ago("busy", FIVE_MINUTES) == SAMPLES + 4 - 30


def test_what_was_ready_is_known_from_the_first_sample_on_and_a_queue_without_a_sample_was_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hour = Hour()
    assert hour.ready_ago("busy", MINUTE) is None
    hour.add(0.0, [replace(BUSY, name="old", ready=70)])
    assert (hour.ready_ago("old", MINUTE), hour.ready_ago("busy", MINUTE)) == (70, 0)
    for number in range(MINUTE):
        hour.add(10.0 * (number + 1), [replace(BUSY, name="old", ready=80 + number), BUSY])
    assert (hour.ready_ago("old", MINUTE), hour.ready_ago("busy", MINUTE)) == (70, 0)
    monkeypatch.setattr(module, "QUEUES_MAX", 2)
    assert hour.ready_ago("forgotten", MINUTE) is None


def test_the_trend_compares_the_last_minute_with_the_five_minutes_before() -> None:
    hour = Hour()
    for _ in range(FIVE_MINUTES):
        hour.add(0.0, [replace(BUSY, ready=5, entered=2.0, left=4.0)])
    for _ in range(MINUTE):
        hour.add(0.0, [replace(BUSY, ready=50, entered=8.0, left=1.0)])
    assert hour.trend("busy") == Trend(5.0, 8.0, 1.0, 2.0, 4.0)
    assert hour.trend("none") == Trend(0.0, 0.0, 0.0, None, None)
    assert (hour.has_left("busy"), hour.has_left("none")) == (True, False)
    assert Hour().trend("none") == Trend(None, None, None, None, None)


def test_a_young_queue_is_not_compared_with_what_was_before() -> None:
    hour = Hour()
    for _ in range(FIVE_MINUTES):
        hour.add(0.0, [])
    for _ in range(MINUTE + 11):
        hour.add(0.0, [BUSY])
    assert hour.trend("busy").entered_before is None
    hour.add(0.0, [BUSY])
    assert hour.trend("busy").entered_before == 1.5


def test_a_queue_where_nothing_happens_takes_no_memory() -> None:
    hour = Hour()
    hour.add(10.0, [IDLE])
    assert hour.of("idle") is None


def test_the_queue_that_was_idle_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUEUES_MAX", 2)
    hour = Hour()
    hour.add(10.0, [replace(BUSY, name="a"), replace(BUSY, name="b")])
    hour.add(20.0, [replace(BUSY, name="a"), replace(IDLE, name="b"), replace(BUSY, name="c")])
    assert hour.of("b") is None
    assert hour.of("a") is not None
    assert hour.of("c") is not None


def test_all_queues_together_are_the_sum() -> None:
    hour = Hour()
    hour.add(10.0, [replace(BUSY, name="a"), replace(BUSY, name="b", ready=4), replace(BUSY, name="hidden")])
    assert hour.of_all({"a", "b"}, {"a", "b"})["ready"] == [7]
    assert hour.of_all({"a", "b"}, {"b"})["ready"] == [4], "those of a wait for nobody"
    assert hour.of_all({"a", "b"}, {"b"})["in"] == hour.of_all({"a", "b"}, {"a", "b"})["in"]
    assert hour.of_all(set(), set())["ready"] == [0]
