"""Feeds a stream from a generator: one piece each time the client has taken the last one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import copy_context
from typing import Protocol

from penstock.dialects.wire.http import Sink
from penstock.errors import DamagedLogError, EventsRemovedError, PenstockError

logger = logging.getLogger(__name__)


class LogClosedError(PenstockError):
    """Nothing more can be read here."""


class Counts(Protocol):
    """What a service counts of its streams."""

    open: int
    bytes_sent: int


class PieceSource:
    def __init__(self, counts: Counts, pieces: AsyncGenerator[bytes, None]) -> None:
        self._counts = counts
        self._pieces = pieces
        self._asked = asyncio.Event()
        self._context = copy_context()  # With the bill of the request that asked for it.
        self._task: asyncio.Task[None] | None = None

    def pull(self, sink: Sink) -> None:
        self._asked.set()
        if self._task is None:
            self._task = asyncio.create_task(self._feed(sink), context=self._context)

    def finish(self) -> None:
        """Nothing to do: it ends by itself."""

    def close(self) -> None:
        self._counts.open -= 1
        if self._task:
            self._task.cancel()

    async def _feed(self, sink: Sink) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    self._asked.clear()
                    self._counts.bytes_sent += len(piece)
                    sink.give(piece)
                    await self._asked.wait()
        except Exception as error:
            _log_failure(error)
            sink.fail()
        else:
            sink.end()


def _log_failure(error: Exception) -> None:
    if isinstance(error, EventsRemovedError):
        logger.info("reader_overtaken", extra={"earliest": error.earliest})
    elif isinstance(error, LogClosedError):
        logger.info("reader_cut_off", extra={"reason": str(error)})
    elif isinstance(error, DamagedLogError):
        logger.error("reader_failed", extra={"reason": str(error)})
    else:
        logger.error("reader_failed", exc_info=error)
