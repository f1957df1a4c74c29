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

from penstock.broker.services.audit import HIDDEN, Audit, RecordEnd, Settings
from penstock.broker.services.contract import Service, accepted
from penstock.broker.services.questions import Answers
from penstock.broker.services.search import Searches
from penstock.broker.writer.port import ClientPort
from penstock.errors import DamagedLogError, Fault, PenstockError, Reason, RequestError
from penstock.limits import JOB_ANSWER_SECONDS, JOBS_MAX, JOBS_REMEMBERED_MAX, PURGE_PAUSE_SECONDS, REDRIVE_AT_ONCE
from penstock.model.access import Verb
from penstock.model.answers import QueueDescription
from penstock.model.client import Client
from penstock.model.commands import DescribeQueue, Purge, Redrive
from penstock.model.jobs import (
    EndJob,
    FindJob,
    JobList,
    JobState,
    Kind,
    ListJobs,
    NoJob,
    Order,
    StartPurge,
    StartRedrive,
)
from penstock.model.permissions import require
from penstock.model.queries import failure
from penstock.model.values import Place

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


# Purges: delete all messages of a queue, slice by slice. A purge deletes the messages that are in the queue when it
# begins. Each slice is durable before the next one is decided, and clients are served in between.


class Purges(Jobs):
    """All purges of one broker."""

    def __init__(self, searches: Searches, audit: Audit) -> None:
        super().__init__(searches, "purges")
        self._audit = audit

    async def purge(self, client: Client, query: StartPurge) -> JobState:
        self.check_room()
        record_end = await self._audit.begin(client, Purge(query.queue), {})
        return await self.begun(_Purge(self._searches, query.queue, record_end))


class _Purge:
    def __init__(self, searches: Searches, queue: str, record_end: RecordEnd) -> None:
        self._searches = searches
        self._record_end = record_end
        self.queue = queue
        self._deleted = 0

    async def run(self, job: Job) -> None:
        slice_ = Purge(self.queue)
        while job.is_running:
            try:
                purged = await self._searches.ask(slice_)
            except RequestError as error:
                if error.error is Reason.NO_QUEUE and slice_.number:
                    return  # The queue was removed meanwhile, and its messages with it.
                raise
            self._deleted += purged.deleted
            if purged.after is None:
                return
            slice_ = Purge(self.queue, purged.number, purged.after, purged.last)
            await asyncio.sleep(PURGE_PAUSE_SECONDS)

    def progress(self) -> dict[str, Any]:
        return {"queue": self.queue, "deleted": self._deleted}

    def ended(self, state: str) -> None:
        self._record_end({"deleted": self._deleted, "state": state})
        if self._deleted:
            logger.info("purged", extra={"queue": self.queue, "deleted": self._deleted, "state": state})


# Redrives: move messages from a queue back to where they came from, some at a time. A redrive moves the messages
# that are in the queue when it begins: one that fails again and returns is not moved twice.


_STEPS_PER_SECOND = 10  # If the rate is limited.


class Redrives(Jobs):
    """All redrives of one broker."""

    def __init__(self, searches: Searches, audit: Audit) -> None:
        super().__init__(searches, "redrives")
        self._audit = audit
        self.all_queues: ClientPort = self.writer  # Of all shards, if there are several.

    async def redrive(self, client: Client, query: StartRedrive) -> JobState:
        self.check_room()
        order = query.order
        for name in self._unchecked(order):
            await accepted(self.all_queues, DescribeQueue(name))
        record_end: RecordEnd = _no_record
        if not order.dry_run:
            record_end = await self._audit.begin(
                client, Redrive(order.criteria.queue, (), order.to), _recorded(order)
            )
        source: QueueDescription = await accepted(self.writer, DescribeQueue(order.criteria.queue))
        return await self.begun(_Redrive(self._searches, order, source.last_sequence, record_end))

    def _unchecked(self, order: Order) -> list[str]:
        """The queues that must exist, the source first, as far as the audit does not see to that."""
        engine, source = self.writer.engine, order.criteria.queue
        if order.dry_run:
            return [source, order.to] if order.to else [source]
        is_away = order.to and engine.queue(source) is not None and engine.is_elsewhere(order.to)
        return [order.to] if is_away else []


def _no_record(_: Settings) -> None:
    """Nothing was moved."""


def _recorded(order: Order) -> Settings:
    """What a record says of a redrive. A text may be the content of a message."""
    shown = {name: HIDDEN if name in ("text", "key") else value for name, value in order.filter.items()}
    return {
        "to": order.to or "(each to the queue that it came from)",
        **({"filter": shown} if shown else {}),
        **({"rate": order.rate} if order.rate else {}),
    }


class _Redrive:
    def __init__(self, searches: Searches, order: Order, last: int, record_end: RecordEnd) -> None:
        self._searches = searches
        self._record_end = record_end
        self._order = order
        self.queue = order.criteria.queue
        self._last = last  # Later messages came after the redrive began.
        self._matched = self._moved = 0
        self._began = asyncio.get_running_loop().time()

    async def run(self, job: Job) -> None:
        after: Place | None = (0, 0)
        while job.is_running and after is not None:
            found = await self._searches.walk(self._order.criteria, after, REDRIVE_AT_ONCE, bodies=False)
            sequences = [message.sequence for message in found.messages if message.sequence <= self._last]
            self._matched += len(sequences)
            after = found.after
            if len(sequences) < len(found.messages) or (after is not None and after[1] >= self._last):
                after = None
            if not self._order.dry_run:
                await self._move(job, sequences, is_last=after is None)

    async def _move(self, job: Job, sequences: list[int], *, is_last: bool) -> None:
        """Move messages, a few at a time if the rate is limited."""
        order, rate = self._order, self._order.rate
        most = REDRIVE_AT_ONCE if rate is None else max(1, int(rate / _STEPS_PER_SECOND))
        while job.is_running and sequences:
            some, sequences = sequences[:most], sequences[most:]
            redriven = await self._searches.ask(Redrive(order.criteria.queue, some, order.to))
            self._moved += redriven.moved
            if rate and (sequences or not is_last):
                due = self._began + self._moved / rate
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    def progress(self) -> dict[str, Any]:
        return {
            "from": self.queue,
            "to": self._order.to or None,
            "matched": self._matched,
            "moved": self._moved,
            "dry_run": self._order.dry_run,
        }

    def ended(self, state: str) -> None:
        self._record_end({"matched": self._matched, "moved": self._moved, "state": state})
        if self._moved:
            logger.info("redriven", extra={"queue": self.queue, "moved": self._moved, "state": state})
