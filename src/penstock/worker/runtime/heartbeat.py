"""Tells the broker every few seconds that a worker is there, for those who watch. Jobs do not depend on it."""

from __future__ import annotations

import asyncio
import logging

from penstock.client.asynchronous import AsyncClient
from penstock.client.errors import ClientError, NotFound
from penstock.worker.runtime.jobs import Jobs

logger = logging.getLogger("penstock.worker")

REPORT_SECONDS = 10.0
_END_SECONDS_MAX = 2.0
_QUEUES_MAX = 100


class Heartbeat:
    def __init__(self, client: AsyncClient, name: str, queues: list[str], jobs: Jobs) -> None:
        self._client = client
        self._name = name
        self._queues = queues[:_QUEUES_MAX]
        self._jobs = jobs

    async def keep(self) -> None:
        """Report until cancelled, or until the broker turns out to be too old for reports."""
        while True:
            if not await self._report():
                return
            await asyncio.sleep(REPORT_SECONDS)

    async def end(self) -> None:
        """The worker stops in order: nobody has to look for it."""
        try:
            async with asyncio.timeout(_END_SECONDS_MAX):
                await self._client.workers.delete(self._name)
        except (ClientError, TimeoutError) as error:
            logger.debug("not signed off", extra={"error": str(error)})

    async def _report(self) -> bool:
        jobs = self._jobs
        try:
            await self._client.workers.report(
                self._name, self._queues, concurrency=jobs.concurrency, running=jobs.running, seconds=REPORT_SECONDS
            )
        except NotFound:
            return False
        except ClientError as error:
            logger.debug("not reported", extra={"error": str(error)})
        return True
