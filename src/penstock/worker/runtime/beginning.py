"""Telling the broker that a job begins, so that this delivery counts. Jobs are fetched ahead, and those that were not
begun when a worker is gone have lost no attempt.

A job that may be tried again is reported a moment after it has begun, which spares most of them the report: they are
confirmed before. One on its last attempt waits for the answer, because if it did not, it could run again after it has
failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from penstock.client.asynchronous import AsyncClient
from penstock.client.errors import Conflict, NotFound, Timeout, Unavailable
from penstock.client.results import Queue
from penstock.worker.errors import described
from penstock.worker.runtime.held import Held

logger = logging.getLogger("penstock.worker")

_AFTER_SECONDS = 0.05


class Beginning:
    def __init__(self, client: AsyncClient, queues: Mapping[str, Queue]) -> None:
        self._client = client
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._reporting: set[asyncio.Task[None]] = set()

    async def begin(self, held: Held) -> bool:
        """Before the function of a job is called. False: it must not be, because the job is not ours any more."""
        held.begun = True
        if self._queues[held.message.queue].has_failed_after(held.message.receives):
            await self._report(held)
            return not held.lost
        held.timer = self._loop.call_later(_AFTER_SECONDS, self._report_soon, held)
        return True

    def _report_soon(self, held: Held) -> None:
        task = self._loop.create_task(self._report(held))
        self._reporting.add(task)
        task.add_done_callback(self._reporting.discard)

    async def _report(self, held: Held) -> None:
        while not (held.lost or held.is_settling):
            try:
                await self._client.extend(held.message, held.lease, begin=True)
            except (Unavailable, Timeout):
                continue
            except (Conflict, NotFound):
                if not held.is_settling:  # Else it may be done with by now.
                    held.stop(held.lose("the broker has taken its lease away"))
            except Exception as error:
                logger.warning("beginning not reported", extra={"job": held.message.id, "error": described(error)})
            return
