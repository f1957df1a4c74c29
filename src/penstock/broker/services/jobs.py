"""Jobs: long work in the broker whose progress clients can query, such as redrives and purges.

A job belongs to the broker, not to the client that started it. It ends with the broker and is not resumed. Each of
its steps is a command of its own, so what it has done stays done.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any, Protocol

from penstock.broker.services.contract import Service
from penstock.broker.services.questions import Answers
from penstock.broker.services.search import Searches
from penstock.errors import DamagedLogError, Fault, PenstockError, RequestError
from penstock.limits import JOB_ANSWER_SECONDS, JOBS_MAX, JOBS_REMEMBERED_MAX
from penstock.model.access import Verb
from penstock.model.client import Client
from penstock.model.jobs import EndJob, FindJob, JobList, JobState, Kind, ListJobs, NoJob
from penstock.model.permissions import require
from penstock.model.queries import failure

logger = logging.getLogger(__name__)


class Work(Protocol):
    """The work of a job."""

    @property
    def queue(self) -> str:
        """Whose messages it is about."""

    async def run(self, job: Job) -> None:
        """Work as long as the job is running. Raises `PenstockError` if it fails."""

    def progress(self) -> dict[str, Any]:
        """The parameters and the progress of the job."""

    def ended(self, state: str) -> None:
        """Write to the broker's log, and to the audit, what the job has done."""


class Job:
    def __init__(self, work: Work) -> None:
        self.id = secrets.token_hex(8)
        self.state = "running"
        self.failure: PenstockError | None = None
        self.progress = work.progress
        self.queue = work.queue
        self._work = work
        self._over = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def end(self, state: str) -> None:
        if self.is_running:
            self.state = state
            self._work.ended(state)
            self._over.set()

    def describe(self) -> JobState:
        failed = failure(self.failure) if self.failure else None
        progress = self.progress()
        return JobState(self.id, self.state, progress, *((str(self.failure), failed.code) if failed else ()))

    def cancel(self) -> None:
        self._task.cancel()

    async def over(self, seconds: float) -> None:
        """Wait until the job is over, at most this long."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            pass

    async def _run(self) -> None:
        try:
            await self._work.run(self)
        except PenstockError as error:
            if isinstance(error, DamagedLogError):
                logger.error("reader_failed", extra={"reason": str(error)})
            self.failure = error
            self.end("failed")
        else:
            self.end("done")


class Jobs(Service):
    """All jobs of one kind: those that run, and the last ones that have ended."""

    def __init__(self, searches: Searches, plural: str) -> None:
        super().__init__(searches.writer)
        self._searches = searches
        self._plural = plural
        self._jobs: dict[str, Job] = {}  # The newest last.

    def check_room(self) -> None:
        if sum(job.is_running for job in self._jobs.values()) >= JOBS_MAX:
            raise RequestError(Fault.JOB_LIMIT, f"{JOBS_MAX} {self._plural}")

    async def begin(self, work: Work) -> Job:
        """Begin a job. Returns it when it is over, or after a short wait."""
        job = Job(work)
        self._jobs[job.id] = job
        over = [each.id for each in self._jobs.values() if not each.is_running]
        for name in over[: max(0, len(over) - JOBS_REMEMBERED_MAX)]:
            del self._jobs[name]
        await job.over(JOB_ANSWER_SECONDS)
        return job

    async def begun(self, work: Work) -> JobState:
        """Begin a job. Raises why it has failed already."""
        job = await self.begin(work)
        if job.failure:
            raise job.failure
        return job.describe()

    async def list(self, client: Client, _: ListJobs) -> JobList:
        return JobList([job.describe() for job in self._jobs.values() if client.access.sees(job.queue)])

    async def find(self, client: Client, query: FindJob) -> JobState | NoJob:
        job = self._seen(client, query)
        return job.describe() if job else NoJob()

    async def end(self, client: Client, query: EndJob) -> JobState | NoJob:
        job = self._seen(client, query)
        if job is None:
            return NoJob()
        require(client.access, ((Verb.MANAGE,), job.queue))
        job.end("stopped")
        return job.describe()

    def _seen(self, client: Client, query: FindJob | EndJob) -> Job | None:
        job = self._jobs.get(query.job)
        return job if job and client.access.sees(job.queue) else None

    async def close(self) -> None:
        await super().close()
        for job in self._jobs.values():
            job.cancel()


def of_kind(kinds: Mapping[Kind, Jobs]) -> Answers:
    """Who answers questions about jobs of any kind."""
    return {
        ListJobs: lambda client, query: kinds[query.kind].list(client, query),
        FindJob: lambda client, query: kinds[query.kind].find(client, query),
        EndJob: lambda client, query: kinds[query.kind].end(client, query),
    }
