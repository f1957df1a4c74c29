"""Purges: delete all messages of a queue, slice by slice.

A purge deletes the messages that are in the queue when it begins. Each slice is durable before the next one is
decided, and clients are served in between.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.broker.services.audit import Audit, RecordEnd
from penstock.broker.services.jobs import Job, Jobs
from penstock.broker.services.search import Searches
from penstock.errors import Reason, RequestError
from penstock.limits import PURGE_PAUSE_SECONDS
from penstock.model.client import Client
from penstock.model.commands import Purge
from penstock.model.jobs import JobState, StartPurge

logger = logging.getLogger(__name__)


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
