"""Tasks and workers: functions that run elsewhere and later, on top of the client.

`app.py` has the tasks of a program, `runtime/` runs them. Nothing here knows how the broker works: the client is all
that is used of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.client.errors import MessageFailed
from penstock.renamed import by_old_name
from penstock.worker.app import App
from penstock.worker.context import Job, current_job
from penstock.worker.errors import LeaseLost, Reject, Retry, TaskError, TimeLimit
from penstock.worker.handle import AsyncHandle, Handle
from penstock.worker.task import Task

__all__ = [
    "App",
    "AsyncHandle",
    "Handle",
    "Job",
    "LeaseLost",
    "MessageFailed",
    "Reject",
    "Retry",
    "Task",
    "TaskError",
    "TimeLimit",
    "current_job",
]

if not TYPE_CHECKING:  # So that type checkers know the new names only.

    def __getattr__(name: str) -> Any:
        return by_old_name(__name__, name, globals().__getitem__)
