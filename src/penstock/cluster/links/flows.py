"""Streams of several shards, or of another process, as one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from penstock.errors import Reason, RequestError
from penstock.model.streams import Flow, Sink, Source

logger = logging.getLogger(__name__)


def in_step(flows: Sequence[Flow], join: Callable[[list[Any]], Any]) -> Flow:
    """One piece of one of each: all have one at about the same time. It ends with the first."""
    pieces = [Pieces(flow.source) for flow in flows]

    async def joined() -> AsyncGenerator[Any, None]:
        while True:
            found = await asyncio.gather(*[anext(each, None) for each in pieces])
            if None in found:
                return
            yield join(found)

    return Flow(MergedSource(joined(), pieces))


async def at_one_moment(flows: Sequence[Flow]) -> list[Any] | None:
    """The second pieces of all, each made when all have their first; None if one has none."""
    pieces = [Pieces(flow.source) for flow in flows]
    try:
        # All wait when they have given the first, and each has waited until all have given the second.
        return await _next_of(pieces) and await _next_of(pieces)
    finally:
        for each in pieces:
            each.close()


async def _next_of(pieces: Sequence[Pieces]) -> list[Any] | None:
    found = await asyncio.gather(*[anext(each, None) for each in pieces], return_exceptions=True)
    return None if any(each is None or isinstance(each, BaseException) for each in found) else found


def close(answer: Any) -> None:
    """An answer that nobody wants is a flow, or nothing more is to be done."""
    if isinstance(answer, Flow):
        answer.source.close()


class MergedSource:
    """Feeds a stream from a generator, which reads the streams of the shards."""

    def __init__(self, merged: AsyncGenerator[Any, None], streams: Sequence[Pieces]) -> None:
        self._merged = merged
        self._streams = streams
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def pull(self, sink: Sink) -> None:
        self._asked.set()
        if self._task is None:
            self._task = asyncio.create_task(self._feed(sink))

    def finish(self) -> None:
        for stream in self._streams:
            stream.finish()

    def close(self) -> None:
        if self._task:
            self._task.cancel()
        for stream in self._streams:
            stream.close()

    async def _feed(self, sink: Sink) -> None:
        try:
            async with aclosing(self._merged) as merged:
                async for piece in merged:
                    self._asked.clear()
                    sink.give(piece)
                    await self._asked.wait()
        except Exception as error:
            logger.info("merged_stream_failed", extra={"reason": str(error)})
            sink.fail()
        else:
            sink.end()


class Pieces:
    """The pieces of a source, one after the other."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._given: asyncio.Future[Any] | None = None
        self._is_closed = False

    def __aiter__(self) -> Pieces:
        return self

    async def __anext__(self) -> Any:
        self._given = asyncio.get_running_loop().create_future()
        self._source.pull(self)
        data = await self._given
        if data is None:
            raise StopAsyncIteration
        return data

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._source.close()

    def finish(self) -> None:
        self._source.finish()

    # ── The sink ────────────────────────────────────────────────────────────────────────────────────────────

    def give(self, data: Any) -> None:
        if self._given and not self._given.done():
            self._given.set_result(data)

    def end(self) -> None:
        if self._given and not self._given.done():
            self._given.set_result(None)

    def cut_off(self) -> None:
        self.fail()

    def fail(self) -> None:
        if self._given and not self._given.done():
            why = "the answer of a shard has ended too early"  # Its process has ended, or has handed it over.
            self._given.set_exception(RequestError(Reason.UNAVAILABLE, why))
