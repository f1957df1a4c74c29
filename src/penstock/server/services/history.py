"""Keeps the Object History on the disk up with the log.

When enough versions have been noted, or a snapshot waits for them, what there is is cut off. As soon as the log has
made all of it durable it is written, beside the event loop; one write at a time, tried again until it succeeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from penstock.errors import HistoryError
from penstock.model.values import Position
from penstock.storage.history.history import ObjectHistory
from penstock.storage.port import Log

logger = logging.getLogger(__name__)

_TRY_AGAIN_SECONDS = 1.0
_REST_SECONDS = 60.0  # Starting a process is as much work as writing tens of thousands of versions.


class Remembering:
    def __init__(self, history: ObjectHistory, log: Log) -> None:
        self.history = history
        self.failure: str | None = None  # Why the last write failed, until one succeeds.
        self.on_written: Callable[[], None] = lambda: None
        self.last_seconds = 0.0  # How long the last write took.
        self._log = log
        self._wanted: Position = 0
        self._durable_at: Position | None = None  # What was cut ends there, and is not being written yet.
        self._writing: asyncio.Future[None] | None = None
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._last_write = 0.0
        self._stopped = False

    def after_commit(self) -> None:
        """Called after each commit: is there something to write, and may it be written?"""
        history = self.history
        if not history.is_cut and (history.behind or history.reached < self._wanted):
            self._durable_at = history.noted
            history.cut(self._log.start.position)
        if self._durable_at is not None and self._durable_at <= self._log.end.position:
            self._durable_at = None
            self._write()

    def reach(self, noted: Position) -> None:
        """Somebody waits until everything noted before this position is on the disk."""
        self._wanted = max(self._wanted, noted)
        self.after_commit()

    def rest(self) -> None:
        """Called now and then: a broker whose objects do not change needs no second process."""
        rested = asyncio.get_running_loop().time() - self._last_write
        if rested > _REST_SECONDS and self._writing is None and not self._stopped:
            self._threads.submit(self.history.rest)

    async def drain(self) -> bool:
        """Write everything, once the log is idle. False: it cannot be written."""
        while self.history.reached < self.history.noted:
            self.reach(self.history.noted)
            if self._writing:
                await asyncio.wait([self._writing])
            if self.failure:
                return False
        return True

    def close(self) -> None:
        """Takes as long as what is being written."""
        self._stopped = True
        self._threads.shutdown()
        self.history.close()

    def _write(self) -> None:
        if self._stopped:
            return
        running = asyncio.get_running_loop()
        began = running.time()
        self._last_write = began
        self._writing = running.run_in_executor(self._threads, self.history.write)

        def done(writing: asyncio.Future[None]) -> None:
            self._writing = None
            self.last_seconds = running.time() - began
            self._conclude(writing)

        self._writing.add_done_callback(done)

    def _conclude(self, writing: asyncio.Future[None]) -> None:
        error = writing.exception()
        if self._stopped:
            return
        if error is None:
            try:
                self.history.written()
            except HistoryError as unreadable:
                error = unreadable
        if error is None:
            self.failure = None
            self.on_written()
            self.after_commit()
        elif isinstance(error, HistoryError):
            self.failure = str(error)
            logger.error("history_failed", extra={"reason": self.failure})
            asyncio.get_running_loop().call_later(_TRY_AGAIN_SECONDS, self._write)
        else:
            raise error
