"""What can go wrong with a task, and what a task raises to say what happens next."""

from __future__ import annotations

from penstock.errors import PenstockError


class TaskError(PenstockError):
    """A task is declared or used in a way that cannot work. The sentence says how to change it."""


class Reject(PenstockError):
    """Raised by a task: the job has failed, and another attempt would not help."""


class Retry(PenstockError):
    """Raised by a task: try again later. Without a delay, the back-off of the queue decides when."""

    def __init__(self, text: str = "the task asked for another attempt", *, delay: float | None = None) -> None:
        super().__init__(text)
        self.delay = delay


class TimeLimit(PenstockError):
    """Raised inside a task that has run for longer than its `timeout`. The job is tried again."""


class LeaseLost(PenstockError):
    """The broker may give the job to another worker: whatever this one still does with it does not count."""


class ChildDied(PenstockError):
    """The process that ran the job has ended. The job is tried again."""
