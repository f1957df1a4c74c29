"""Writes the Object History to disk, after the log.

When there are enough new versions, or a snapshot waits for them, the service takes those noted so far. As soon as
they are durable in the log, it writes them in a thread beside the event loop: one write at a time, repeated until it
succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from penstock.broker.figures.measures import Samples, one
from penstock.broker.services.contract import Service, durable
from penstock.broker.writer.port import ServicePort
from penstock.errors import HistoryError
from penstock.model.answers import Refused
from penstock.model.values import Position
from penstock.storage.history.object_history import ObjectHistory

logger = logging.getLogger(__name__)

_TRY_AGAIN_SECONDS = 1.0
_IDLE_SECONDS = 60.0  # Starting a process costs as much as writing tens of thousands of versions.


class HistoryWrites(Service):
    def __init__(self, writer: ServicePort, history: ObjectHistory) -> None:
        super().__init__(writer)
        self.history = history  # Replaced together with the log, before the service starts again.
        self.failure: str | None = None  # Why the last write failed.
        self._last_seconds = 0.0  # How long the last write took.
        self._wanted: Position = 0
        self._tried = asyncio.Event()
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="history")
        writer.on_commit.append(self._after_commit)

    def start(self) -> None:
        self._wanted, self.failure = 0, None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="history")
        super().start()

    async def run(self) -> None:
        while not self.writer.failure:
            if self._is_due:
                await self._write()
            elif not await self.rest(_IDLE_SECONDS):
                self._threads.submit(self.history.rest)  # Without changes no second process is needed.

    def want(self, noted: Position) -> None:
        """Write everything noted before this position soon."""
        self._wanted = max(self._wanted, noted)
        self.wake()

    async def reach(self, noted: Position) -> None:
        """Return when everything noted before this position is on disk."""
        self.want(noted)
        while self.history.reached < noted:
            await self._next_try()

    async def stop(self) -> None:
        """Write everything, once the log is idle. If that fails, `failure` has the reason."""
        self.want(self.history.noted)
        while self.history.reached < self.history.noted and not self.failure:
            await self._next_try()
        await super().stop()

    async def close(self) -> None:
        """Close the history after the current write."""
        await super().close()
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self.history.close)

    def state(self) -> Iterable[tuple[str, Samples]]:
        yield "penstock_history_healthy", one(not self.failure)
        yield "penstock_history_keys", one(self.history.keys)
        yield "penstock_history_unwritten", one(self.history.unwritten)
        yield "penstock_history_write_seconds", one(self._last_seconds)

    @property
    def _is_due(self) -> bool:
        return self.history.behind or self.history.reached < self._wanted

    def _after_commit(self) -> None:
        if self.history.behind:
            self.wake()

    async def _write(self) -> None:
        if not self.history.is_cut:
            self.history.cut(self.writer.log.start.position)
        if isinstance(await durable(self.writer), Refused):
            return  # The log has failed. The service starts again with the next one.
        while True:
            await self._try()
            if not self.failure:
                return
            await asyncio.sleep(_TRY_AGAIN_SECONDS)

    async def _try(self) -> None:
        running = asyncio.get_running_loop()
        began = running.time()
        try:
            await running.run_in_executor(self._threads, self.history.write)
            self.history.written()
            self.failure = None
        except Exception as error:
            self.failure = str(error) or repr(error)
            defect = None if isinstance(error, HistoryError) else error
            logger.error("history_failed", extra={"reason": self.failure}, exc_info=defect)
        self._last_seconds = running.time() - began
        self._tried.set()

    async def _next_try(self) -> None:
        self._tried.clear()
        await self._tried.wait()
