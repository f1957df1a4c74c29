"""When a task runs by itself: a cron expression or an interval. The broker keeps the time."""

from __future__ import annotations

from msgspec import Struct

from penstock.worker.errors import TaskError


class Recurrence(Struct, frozen=True):
    """One of `cron` and `every` is set."""

    cron: str | None = None
    every: float | None = None  # Seconds.
    time_zone: str | None = None


def recurrence_of(task: str, cron: str | None, every: float | None, time_zone: str | None) -> Recurrence | None:
    """What the options of a task say about when it runs by itself; None: it does not."""
    if cron is not None and every is not None:
        raise TaskError(f"task {task}: use either schedule or every")
    return Recurrence(cron, every, time_zone) if cron is not None or every is not None else None
