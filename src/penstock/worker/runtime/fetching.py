"""Fetching the jobs of one queue: as many as the worker can begin soon, never silently stuck."""

from __future__ import annotations

import asyncio
import logging
import random

from penstock.backoff import backoff_ns
from penstock.client.asynchronous import AsyncMessage
from penstock.client.errors import ClientError, QueueNotFound
from penstock.limits import SECOND_NS
from penstock.worker.app import App
from penstock.worker.runtime.jobs import Jobs

logger = logging.getLogger("penstock.worker")

_WAIT_SECONDS = 10  # For a first job.
_MARGIN_SECONDS = 10.0  # Without an answer so long after that, the connection hangs: give it up.
_PAUSE_FIRST_NS = SECOND_NS // 5
_PAUSE_LONGEST_NS = 5 * SECOND_NS


class Fetcher:
    """The jobs of one queue, until it is cancelled."""

    def __init__(self, app: App, queue: str, consumer: str, share: int, jobs: Jobs) -> None:
        self._app = app
        self._queue = queue
        self._consumer = consumer
        self._share = share  # How many queues there are.
        self._jobs = jobs
        self._failures = 0

    async def run(self) -> None:
        """Jobs as they come."""
        while True:
            if not await self._fetch_some():
                # With nothing to do, ask for a part only: the other queues wait for their first job as well.
                count = max(1, await self._wait_for_room() // self._share)
                self._jobs.take(await self._fetch(count, _WAIT_SECONDS))

    async def burst(self) -> None:
        """The jobs that are there now, and those that they bring about."""
        while await self._fetch_some() or not self._jobs.idle:
            if not self._jobs.wanted() or not self._jobs.idle:
                await self._jobs.wait_for_change()

    async def _fetch_some(self) -> bool:
        messages = await self._fetch(await self._wait_for_room(), 0)
        self._jobs.take(messages)
        return bool(messages)

    async def _wait_for_room(self) -> int:
        while not (count := self._jobs.wanted()):
            await self._jobs.wait_for_change()
        return count

    async def _fetch(self, count: int, wait: int) -> list[AsyncMessage]:
        """Jobs, or nothing after a failure, which is logged when it begins and when it ends."""
        try:
            async with asyncio.timeout(wait + _MARGIN_SECONDS):
                messages = await self._app.broker.client().receive(
                    self._queue, count, wait=wait, consumer=self._consumer, ahead=True
                )
        except (ClientError, TimeoutError) as error:
            await self._failed(error)
            return []
        if self._failures:
            logger.info("connected again", extra={"queue": self._queue})
            self._failures = 0
        return messages

    async def _failed(self, error: Exception) -> None:
        self._failures += 1
        if self._failures == 1:
            logger.warning("cannot fetch jobs; trying again", extra={"queue": self._queue, "error": str(error)})
        # Chance only spreads workers out.
        pause_ns = backoff_ns(self._failures, _PAUSE_FIRST_NS, _PAUSE_LONGEST_NS, random.random())
        await asyncio.sleep(pause_ns / SECOND_NS)
        if isinstance(error, QueueNotFound):
            await self._make_queue()

    async def _make_queue(self) -> None:
        """Somebody has removed the queue."""
        try:
            await self._app.broker.declare(self._queue, again=True)
        except ClientError as error:
            logger.warning("cannot make the queue", extra={"queue": self._queue, "error": str(error)})
