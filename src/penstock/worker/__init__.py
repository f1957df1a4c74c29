"""Tasks and workers: functions that run elsewhere and later, on top of the client.

`app.py` has the tasks of a program, `runtime/` runs them. Nothing here knows how the broker works: the client is all
that is used of it.
"""

from __future__ import annotations

from penstock.worker.app import App
from penstock.worker.context import Job, current_job
from penstock.worker.errors import JobFailed, LeaseLost, Reject, Retry, TaskError, TimeLimit
from penstock.worker.handle import AsyncHandle, Handle
from penstock.worker.task import Task

__all__ = [
    "App",
    "AsyncHandle",
    "Handle",
    "Job",
    "JobFailed",
    "LeaseLost",
    "Reject",
    "Retry",
    "Task",
    "TaskError",
    "TimeLimit",
    "current_job",
]
