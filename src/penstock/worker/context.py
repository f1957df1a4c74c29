"""What a running task can know about its job, and report."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar
from datetime import datetime

from msgspec import Struct

from penstock.client.causes import set_cause
from penstock.worker.errors import printable

_current: ContextVar[Job | None] = ContextVar("penstock_job", default=None)


class Progress(Struct, omit_defaults=True):
    """How far a job is, as it is published."""

    job: str
    task: str
    attempt: int
    done: float | None = None  # 0 to 1.
    text: str = ""
    failed: bool = False


class Job:
    """The job that a task runs for: `penstock.current_job()`."""

    __slots__ = ("_report", "attempt", "created", "id", "queue", "stopped", "task")

    def __init__(
        self,
        id: str,
        task: str,
        queue: str,
        attempt: int,
        created: datetime,
        report: Callable[[Progress], None],
    ) -> None:
        self.id = id
        self.task = task
        self.queue = queue
        self.attempt = attempt  # 1 for the first.
        self.created = created
        self.stopped: Exception | None = None  # Why the job should end: `TimeLimit` or `LeaseLost`.
        self._report = report

    def progress(self, done: float | None = None, text: str = "") -> None:
        """Report how far the job is: 0 to 1, or a text, or both. It never waits; a report a second is published."""
        given: tuple[object, object] = done, text
        if not isinstance(given[0], int | float | None) or not isinstance(given[1], str):
            kinds = " and ".join(type(each).__name__ for each in given)
            raise TypeError(f"progress takes a number from 0 to 1 and a text, got {kinds}")
        self._report(Progress(self.id, self.task, self.attempt, done, printable(str.__str__(text))))

    def check(self) -> None:
        """Raises `TimeLimit` or `LeaseLost` if the job should end. For long loops in threads."""
        if self.stopped is not None:
            raise self.stopped

    def enter(self) -> None:
        """Make this the current job of the context that runs now: what is published there names it as its cause."""
        _current.set(self)
        set_cause(self.id)

    def __repr__(self) -> str:
        return f"Job(id={self.id!r}, task={self.task!r}, attempt={self.attempt})"


def current_job() -> Job:
    """The job of the task that runs now. Raises RuntimeError outside of a worker."""
    job = _current.get()
    if job is None:
        raise RuntimeError("no job is running here: a task that is called directly has none")
    return job


class JobFilter(logging.Filter):
    """Adds the job to every line that is logged while it runs."""

    def filter(self, record: logging.LogRecord) -> bool:
        job = _current.get()
        if job is not None and not hasattr(record, "job"):
            record.job, record.task = job.id, job.task
        return True
