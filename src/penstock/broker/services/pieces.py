"""Feeds a stream from a generator: one piece each time the client has taken the last one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import copy_context
from typing import Any, Protocol

from penstock.broker.room import Taken
from penstock.errors import DamagedLogError, EventsRemovedError, PenstockError
from penstock.model.streams import Sink

logger = logging.getLogger(__name__)


class LogClosedError(PenstockError):
    """Nothing more can be read here."""


class Counts(Protocol):
    """What a service counts of its streams."""

    open: int
    bytes_sent: int


class PieceSource:
    def __init__(self, counts: Counts, pieces: AsyncGenerator[Any, None], taken: Taken, piece_bytes: int = 0) -> None:
        """`taken`: the room that it has. `piece_bytes`: how much a piece takes. 0: the pieces take it themselves."""
        self._counts = counts
        self._pieces = pieces
        self._taken = taken
        self._piece_bytes = piece_bytes
        self._sink: Sink | None = None
        taken.abort = self._cut_off
        self._asked = asyncio.Event()
        self._context = copy_context()  # With the bill of the request that asked for it.
        self._task: asyncio.Task[None] | None = None

    def pull(self, sink: Sink) -> None:
        self._asked.set()
        self._sink = sink
        if self._task is None:
            self._task = asyncio.create_task(self._feed(sink), context=self._context)

    def finish(self) -> None:
        """Nothing to do: it ends by itself."""

    def close(self) -> None:
        self._counts.open -= 1
        if self._task:
            self._task.cancel()
        self._taken.end()
        self._sink = None  # It knows this, and what it holds would stay until the garbage collector finds both.

    def _cut_off(self) -> None:
        if self._sink:
            self._sink.cut_off()

    async def _feed(self, sink: Sink) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                while (piece := await self._next(pieces)) is not None:
                    self._asked.clear()
                    self._counts.bytes_sent += _size_of(piece)
                    sink.give(piece)
                    await self._asked.wait()
        except asyncio.CancelledError:
            return  # The traceback would keep what pieces are made of, until the garbage collector finds it.
        except Exception as error:
            _log_failure(error)
            sink.fail()
        else:
            sink.end()

    async def _next(self, pieces: AsyncGenerator[Any, None]) -> Any:
        if not self._piece_bytes:
            return await anext(pieces, None)
        await self._taken.take(self._piece_bytes)
        piece = await anext(pieces, None)
        self._taken.note(0)  # Who gets it counts it.
        return piece


def _size_of(piece: Any) -> int:
    """Of a piece that is bytes, or has some."""
    return len(piece) if isinstance(piece, bytes) else getattr(piece, "size", 0)


def _log_failure(error: Exception) -> None:
    if isinstance(error, EventsRemovedError):
        logger.info("reader_overtaken", extra={"earliest": error.earliest})
    elif isinstance(error, LogClosedError):
        logger.info("reader_cut_off", extra={"reason": str(error)})
    elif isinstance(error, DamagedLogError):
        logger.error("reader_failed", extra={"reason": str(error)})
    else:
        logger.error("reader_failed", exc_info=error)
