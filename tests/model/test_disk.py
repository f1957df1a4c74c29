"""How long the disk will do: at the rate of the last hour, and with what retention removes in time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.disk import Disk, together

GIB, DAY = 1 << 30, 86400
FINE = Disk(1 * GIB, 64, 50 * GIB, 100 * GIB, 1.0 * GIB, 7 * DAY, 10 * GIB)


@pytest.mark.parametrize(
    ("changes", "days"),
    [
        ({}, None),  # Seven GiB are kept, and there is room for them.
        ({"free_bytes": 3 * GIB}, 3),
        ({"free_bytes": 3 * GIB, "retention_bytes": 2 * GIB}, None),
        ({"free_bytes": 3 * GIB, "retention_seconds": 2 * DAY}, None),
        ({"free_bytes": 3 * GIB, "log_bytes": 6 * GIB}, None),  # It has its size already.
        ({"free_bytes": 3 * GIB, "written_per_day": None}, None),
        ({"free_bytes": 3 * GIB, "written_per_day": 0.0}, None),
        ({"free_bytes": 0}, 0),
    ],
)
def test_the_disk_is_full_when_retention_does_not_help_in_time(changes: dict[str, int], days: float | None) -> None:
    assert FINE._replace(**changes).full_in() == (None if days is None else days * DAY)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"free_bytes": 3 * GIB}, "the disk is full in 72 hours at the rate of the last hour"),
        ({"free_bytes": 3 * GIB, "written_per_day": 72.0 * GIB}, "the disk is full in 60 minutes"),
        ({"free_bytes": 4 * GIB, "written_per_day": None}, "the disk has 4.0 GiB of 100 GiB left"),
        (
            {"free_bytes": GIB // 2, "total_bytes": 2 * GIB, "written_per_day": 0.0},
            "the disk has 0.5 GiB of 2 GiB left",
        ),
        ({"free_bytes": 6 * GIB, "written_per_day": 0.1 * GIB}, ""),
        (
            {"free_bytes": 3 * GIB, "measured_seconds": 780},
            "the disk is full in 72 hours at the rate since start, 13 minutes ago",
        ),
        (
            {"free_falls_per_day": 101.0 * GIB},
            "other files than the log fill the disk in 12 hours at the rate of the last hour",
        ),
        ({"free_falls_per_day": 101.0 * GIB, "measured_seconds": 300}, ""),  # That may be a passing file.
        ({"free_falls_per_day": 101.0 * GIB, "written_per_day": 101.0 * GIB}, ""),  # It is the log, which is bounded.
        ({"free_falls_per_day": -5.0 * GIB}, ""),
    ],
)
def test_a_disk_that_gets_tight_needs_a_person(changes: dict[str, int], words: str) -> None:
    found = FINE._replace(**changes).warning()
    assert found.startswith(words)
    assert bool(found) == bool(words)


def test_several_logs_are_on_one_disk() -> None:
    both = together([FINE, FINE._replace(free_bytes=GIB, written_per_day=2.0 * GIB)])
    assert both == Disk(2 * GIB, 128, GIB, 100 * GIB, 3.0 * GIB, 7 * DAY, 20 * GIB)
    assert together([FINE, FINE._replace(written_per_day=None)]).written_per_day is None


@given(st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.floats(0, 1e18), st.integers(0, 1 << 40))
def test_a_forecast_is_not_negative(log: int, free: int, written: float, retention: int) -> None:
    disk = Disk(log, 1, free, max(free, 1), written, retention, 1 << 60)
    assert (disk.full_in() or 0) >= 0
    assert disk.document()["warning"] == disk.warning()
    assert bool(disk.advice()) == bool(disk.warning())
