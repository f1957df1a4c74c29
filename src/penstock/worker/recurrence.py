"""When a task runs by itself: a cron expression or an interval. The broker keeps the time."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.client.errors import NotFound
from penstock.worker import payload
from penstock.worker.errors import TaskError

if TYPE_CHECKING:
    from penstock.worker.app import App
    from penstock.worker.task import Task


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


async def put_schedules(app: App, queues: Collection[str]) -> None:
    """Give the broker the schedules of the tasks in these queues. One that an operator has paused stays paused."""
    for task in app.tasks.values():
        if task.recurrence is not None and task.queue in queues:
            await _put(app, task, task.recurrence)


async def _put(app: App, task: Task[Any, Any], recurrence: Recurrence) -> None:
    schedules, name = app.broker.client().schedules, f"{app.name}.{task.name}"
    try:
        paused = (await schedules.get(name)).paused
    except NotFound:
        paused = False
    await schedules.create(
        name,
        payload.as_message(task.with_options().body(), task.format),
        queue=task.queue,
        cron=recurrence.cron,
        every=recurrence.every,
        time_zone=recurrence.time_zone,
        paused=paused,
        priority=task.priority,
        content_type=payload.CONTENT_TYPES[task.format],
    )
