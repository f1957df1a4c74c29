"""Reads the log in threads beside the event loop, for readers of the Event Log, searches and message documents.

All threads share one interpreter with the event loop. So while the broker is busy, all readers pause eight times as
long as they have worked. A person who looks at one message does not wait for that, within a budget that all such
looks share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from penstock.broker.quotas.work import current_bill
from penstock.broker.services.contract import Service, in_thread
from penstock.broker.services.log_names import NameTexts, QueueNames
from penstock.broker.writer.port import ServicePort
from penstock.storage.log.view import Extents, View

_THREADS = 2
_REST = 8  # Times as long as the work.
_REST_SECONDS_MIN = 0.001  # A timer cannot wait for less. Shorter pauses are added up.
_HASTE_SECONDS_MAX = 0.5  # So much work may be done at once, without a pause before it …
_HASTE_SHARE = 0.1  # … and as much again in the course of time: a tenth of it.
_AT_WORK_SECONDS = 0.02  # The broker is busy if it has committed something within this time.

_Result = TypeVar("_Result")


class LogReads(Service):
    """What all readers of the log share: threads, and the names that numbers in the log stand for."""

    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        self.queues = QueueNames(writer, self.view)
        self.names = NameTexts(writer, self.view)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="log-reader")
        self._rest_until = 0.0
        self._committed_at = 0.0
        self._haste, self._haste_at = _HASTE_SECONDS_MAX, 0.0
        writer.on_commit.append(self._after_commit)

    def view(self) -> View:
        """The part of the log that is durable now. Thread-safe."""
        return self.writer.log.view()

    def extents(self) -> Extents:
        return Extents(self.view())

    async def in_thread(self, work: Callable[[], _Result], *, at_once: bool = False) -> _Result:
        """Run a function in a thread. `at_once`: somebody looks at a page that waits for it."""
        running = asyncio.get_running_loop()
        hastens = at_once and self._may_hasten(running.time())
        await self._rest(hastens=hastens)
        result, seconds = await in_thread(partial(_timed, work), self._threads)
        self._rest_until = max(self._rest_until, running.time()) + _REST * seconds
        if hastens:
            self._haste -= seconds
        if bill := current_bill():
            bill.add(seconds)
        if isinstance(result, BaseException):
            raise result
        return cast("_Result", result)

    async def close(self) -> None:
        await super().close()
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    def _may_hasten(self, now: float) -> bool:
        self._haste = min(_HASTE_SECONDS_MAX, self._haste + _HASTE_SHARE * (now - self._haste_at))
        self._haste_at = now
        return self._haste > 0

    async def _rest(self, *, hastens: bool) -> None:
        if (bill := current_bill()) and (seconds := bill.pause()):
            await asyncio.sleep(seconds)
        if hastens:
            return
        now = asyncio.get_running_loop().time()
        if now >= self._committed_at + _AT_WORK_SECONDS:
            self._rest_until = 0.0
        if self._rest_until - now >= _REST_SECONDS_MIN:
            await asyncio.sleep(self._rest_until - now)

    def _after_commit(self) -> None:
        self.queues.remember()
        self._committed_at = asyncio.get_running_loop().time()


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result, or the exception, and how many seconds of the processor it took: others may have it meanwhile."""
    began = time.thread_time()
    try:
        result = work()
    except Exception as error:
        result = error
    return result, time.thread_time() - began
