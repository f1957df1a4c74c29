"""Jobs: redrives and purges, which continue after their request was answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from penstock.model.commands import Command, Criteria, Purge, Redrive
from penstock.model.queries import Act, NoAnswer, Query
from penstock.model.values import Packed

Kind = Literal["redrives", "purges"]


class JobState(Packed, frozen=True):
    job: str
    state: str
    progress: dict[str, Any]  # What the job is about, and how far it has come.
    error: str = ""  # Why it has failed, and the code of that.
    code: str = ""


class NoJob(Packed, frozen=True):
    """The client sees no such job."""


class JobList(Packed, frozen=True):
    jobs: list[JobState]


class ListJobs(Query, frozen=True):
    kind: Kind


class FindJob(Query, frozen=True):
    kind: Kind
    job: str


class EndJob(Act, frozen=True):
    """Ends it early."""

    kind: Kind
    job: str


class StartPurge(Act, frozen=True):
    """Answered when the purge is over, or when that takes long."""

    queue: str

    def needs(self) -> Command:
        return Purge(self.queue)


class Order(Struct, frozen=True):
    """A redrive to carry out. The criteria name the queue that it takes messages from."""

    criteria: Criteria
    to: str  # Empty: each back to where it came from.
    rate: float | None  # Messages a second, at most.
    dry_run: bool
    filter: dict[str, str | float] = {}  # The criteria as they were given.


class StartRedrive(Act, frozen=True):
    """As `StartPurge`."""

    order: Order

    def needs(self) -> Command:
        return Redrive(self.order.criteria.queue, (), self.order.to)


def all_jobs(_: ListJobs, lists: Sequence[JobList]) -> JobList:
    return JobList([job for each in lists for job in each.jobs])


def the_one(_: FindJob | EndJob, found: Sequence[JobState | NoJob | NoAnswer]) -> JobState | NoJob | NoAnswer:
    """A shard that does not answer may have it."""
    known = next((each for each in found if isinstance(each, JobState)), None)
    return known or next((each for each in found if not isinstance(each, NoJob)), NoJob())
