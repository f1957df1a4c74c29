"""What is asked for at the same time goes to the broker in one request.

A call that comes alone is sent at once. While two requests are under way, further calls collect for the next one, so
the busier a client is, the larger its batches are.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from penstock.client import errors
from penstock.limits import BATCH_MESSAGES_MAX

Result = TypeVar("Result")

_BATCH_BYTES = 256 << 10
_UNDER_WAY = 2  # Batches that are under way at once: the broker works on one while the client makes the other.
_UNDER_WAY_MAX = 4  # The same, if they are full.
# One entry of a list may be the cause of these, so the others are tried without it.
_BLAMABLE = (errors.BadRequest, errors.TooLarge, errors.LimitReached)


class _Call(Struct, gc=False):
    """Not tracked by the garbage collector: there may be very many, and none is part of a cycle."""

    document: bytes
    done: asyncio.Future[Any]
    since: float  # When its time began.


class Batches(Generic[Result]):
    """Collects documents into JSON lists, and hands each its part of the answer."""

    def __init__(self, send: Callable[[bytes, float], Awaitable[Sequence[Result]]]) -> None:
        self._send = send  # Sends a list of documents, the first of which waits since then.
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_Call] = deque()
        self._waiting_bytes = 0
        self._scheduled = False
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def idle(self) -> bool:
        return not (self._waiting or self._under_way)

    def add(self, document: bytes) -> asyncio.Future[Result]:
        done: asyncio.Future[Result] = self._loop.create_future()
        self._waiting.append(_Call(document, done, self._loop.time()))
        self._waiting_bytes += len(document)
        if not self._scheduled:
            # In the next turn of the event loop: all calls of this turn go together.
            self._scheduled = True
            self._loop.call_soon(self._send_what_may_go)
        return done

    async def finish(self) -> None:
        """Wait until everything is answered."""
        while not self.idle:
            await (asyncio.wait(self._under_way) if self._under_way else asyncio.sleep(0))

    def _send_what_may_go(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._under_way) < (_UNDER_WAY_MAX if self._is_full else _UNDER_WAY):
            batch = self._next_batch()
            if batch:
                task = self._loop.create_task(self._carry(batch))
                self._under_way.add(task)
                task.add_done_callback(self._ended)

    @property
    def _is_full(self) -> bool:
        return len(self._waiting) >= BATCH_MESSAGES_MAX or self._waiting_bytes >= _BATCH_BYTES

    def _next_batch(self) -> list[_Call]:
        """The calls that go first, without those whose callers have gone."""
        batch: list[_Call] = []
        size = 0
        waiting = self._waiting
        while waiting and len(batch) < BATCH_MESSAGES_MAX and (size < _BATCH_BYTES):
            call = waiting.popleft()
            self._waiting_bytes -= len(call.document)
            if not call.done.done():
                batch.append(call)
                size += len(call.document)
        return batch

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._send_what_may_go()

    async def _carry(self, batch: list[_Call]) -> None:
        try:
            documents = b",".join([call.document for call in batch])
            results = await self._send(b"[%b]" % documents, batch[0].since)
        except asyncio.CancelledError:
            for call in batch:
                call.done.cancel()
            raise
        except _BLAMABLE as error:
            if len(batch) == 1 or error.retry_after is not None:
                _fail(batch, error)
                return
            half = len(batch) // 2
            await self._carry(batch[:half])
            await self._carry(batch[half:])
        except Exception as error:
            _fail(batch, error)
        else:
            for call, result in zip(batch, results, strict=True):
                if not call.done.done():
                    call.done.set_result(result)


def _fail(batch: list[_Call], error: Exception) -> None:
    for call in batch:
        if not call.done.done():
            # Each caller raises an exception of its own: one that is raised many times collects many tracebacks.
            call.done.set_exception(copy.copy(error))
