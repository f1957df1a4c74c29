"""The last hour: one sample after the other, gaps are gaps, and memory is bounded."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock.dialects.native.stats import Figures
from penstock.server.services import hour as module
from penstock.server.services.hour import SAMPLES, Hour

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
    assert hour.ready_before("busy") == SAMPLES + 4 - 30


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
