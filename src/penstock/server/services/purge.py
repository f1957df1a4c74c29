"""Purges: all messages of a queue deleted, slice by slice, for as long as it takes.

A purge is about the messages that are there when it begins. Each slice is durable before the next one is decided, and
others have their turn in between.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.dialects.wire.http import Awaited, Response
from penstock.errors import Reason
from penstock.limits import PURGE_PAUSE_SECONDS
from penstock.model.answers import Answer, Purged, Refused
from penstock.model.commands import Purge
from penstock.server.services.jobs import Job, Jobs, Respond
from penstock.server.services.search import Searching

logger = logging.getLogger(__name__)


class Purging(Jobs):
    """All purges of one broker."""

    def __init__(self, searching: Searching) -> None:
        super().__init__("/v1/purges", "purges")
        self._searching = searching

    def begin(self, queue: str) -> Response | Awaited:
        if full := self.refusal():
            return full

        def start(respond: Respond) -> None:
            job = Job()
            job.work = _Purge(job, self._searching, queue)
            self.start(job, respond)

        return Awaited(start)


class _Purge:
    def __init__(self, job: Job, searching: Searching, queue: str) -> None:
        self._job = job
        self._searching = searching
        self._next = Purge(queue)
        self._deleted = 0

    def step(self) -> None:
        self._searching.ask(self._next, self._purged)

    def _purged(self, answer: Answer) -> None:
        if isinstance(answer, Purged):
            self._deleted += answer.deleted
            if answer.after is None:
                self._job.end()
            else:
                self._next = Purge(self._next.queue, answer.number, answer.after, answer.last)
                asyncio.get_running_loop().call_later(PURGE_PAUSE_SECONDS, self._job.go_on)
        else:
            assert isinstance(answer, Refused)
            if answer.reason is Reason.NO_QUEUE and self._next.number:
                self._job.end()  # The queue was removed meanwhile, and its messages with it.
            else:
                self._job.fail(answer)

    def ended(self, state: str) -> None:
        if self._deleted:
            logger.info("purged", extra={"queue": self._next.queue, "deleted": self._deleted, "state": state})

    def document(self) -> dict[str, Any]:
        return {"queue": self._next.queue, "deleted": self._deleted}
