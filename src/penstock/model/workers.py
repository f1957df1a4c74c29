"""What workers say about themselves."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from penstock.limits import INT32_MAX
from penstock.model.queries import Act, Query
from penstock.model.values import Packed

_QUEUES_MAX = 100

_Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]


class Report(Struct, forbid_unknown_fields=True, frozen=True):
    """What a worker says about itself."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=_QUEUES_MAX)]
    concurrency: _Count  # Jobs at a time.
    running: _Count
    seconds: Annotated[float, Meta(gt=0, le=3600)]  # When it will report again.


class WorkerState(Struct, frozen=True):
    """What is known of a worker, as far as the client sees it."""

    name: str
    queues: list[str]
    concurrency: int
    running: int
    since: float  # Seconds since the epoch.
    heard: float
    missing: bool


class ListWorkers(Query, frozen=True):
    """Those that work for a queue that the client sees, the one that was heard longest ago first."""

    waits_for_log: ClassVar[bool] = False


class WorkerList(Packed, frozen=True):
    workers: list[WorkerState]


class NoteWorker(Act, frozen=True):
    """Names of workers are chosen by clients that do not know of each other: one name may be that of several."""

    name: str
    report: Report
    waits_for_log: ClassVar[bool] = False


class RemoveWorker(Act, frozen=True):
    """Remove those that the client may consume for."""

    name: str
    waits_for_log: ClassVar[bool] = False


class Noted(Packed, frozen=True):
    is_known: bool  # Whether the client sees such a worker.
