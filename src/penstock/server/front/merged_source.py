"""A stream that is made of the streams of several shards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from penstock.dialects.wire.http import Response, Sink, Stream
from penstock.server.front.asking import AnsweredError, Asking, Pieces

logger = logging.getLogger(__name__)


async def streams_of(asking: Asking, targets: Sequence[bytes] | None = None, **changes: Any) -> list[Stream]:
    """The streams of all shards. Raises `AnsweredError` if one is refused; the others are closed then."""
    wanted = targets or [asking.request.target] * asking.shards.shards
    asked = [asking.at(shard, target=target, **changes) for shard, target in enumerate(wanted)]
    tasks = [asyncio.create_task(each) for each in asked]
    try:
        answers = await asyncio.gather(*tasks)
    except asyncio.CancelledError:
        for task in tasks:
            if task.done() and not task.cancelled() and isinstance(begun := task.result(), Stream):
                begun.source.close()
            task.cancel()
        raise
    streams = [answer for answer in answers if isinstance(answer, Stream)]
    refused = next((answer for answer in answers if isinstance(answer, Response)), None)
    if refused:
        for stream in streams:
            stream.source.close()
        raise AnsweredError(refused)
    return streams


class MergedSource:
    """Feeds a stream from a generator, which reads the streams of the shards."""

    def __init__(self, merged: AsyncGenerator[bytes, None], streams: Sequence[Pieces]) -> None:
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
