"""A stream that is made of the streams of several shards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from penstock.dialects.wire.http import Response, Stream
from penstock.server.front.asking import AnsweredError, Asking

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
