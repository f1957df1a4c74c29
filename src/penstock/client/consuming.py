"""A loop over the messages of a queue: it fetches ahead, keeps leases alive, and confirms what the loop has done."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from penstock.client import errors
from penstock.client.encoding import OutcomeName, path
from penstock.client.results import Confirmed, MessageFacts, Queue
from penstock.client.session import Session

logger = logging.getLogger("penstock.client")

T = TypeVar("T")
M = TypeVar("M", bound=MessageFacts)

_EXTENSIONS_PER_LEASE = 3
_LEASE_SECONDS_MIN = 1.0
_BEGIN_SECONDS = 0.05


class Source(Protocol[M]):
    """What the loop needs of a client."""

    async def receive(
        self,
        queue: str,
        max: int = 1,
        *,
        wait: float = 20,
        lease: float | None = None,
        consumer: str | None = None,
        ahead: bool = False,
    ) -> list[M]: ...
    async def settle(self, message: M, outcome: OutcomeName, *, begun: bool = True) -> Confirmed: ...
    async def extend(self, message: M, seconds: float, *, begin: bool = False) -> None: ...


async def consumed(
    source: Source[M],
    session: Session,
    queue: str,
    prefetch: int,
    idle: float | None,
    lease: float | None,
    consumer: str | None,
) -> AsyncGenerator[list[M], None]:
    """The messages of a queue, one on each page: the next one is asked for when the last one is done."""
    found = await _outlasting(lambda: session.get(path("queues", queue), Queue), queue, idle)
    lease = max(found.lease if lease is None else lease, _LEASE_SECONDS_MIN)
    holding = _Consumer(source, found, prefetch, lease, consumer)
    async with aclosing(holding.messages(idle)) as messages:
        async for message in messages:
            yield [message]


async def _outlasting(ask: Callable[[], Awaitable[T]], queue: str, idle: float | None) -> T:
    """Ask again and again: a loop without an end waits for the broker for as long as it takes."""
    while True:
        try:
            return await ask()
        except (errors.Unavailable, errors.Timeout) as error:
            if idle is not None:
                raise
            logger.warning("no messages of %s for now: %s", queue, error)


class _Consumer(Generic[M]):
    """The messages that one loop holds: those fetched ahead, and the one it works on."""

    def __init__(self, source: Source[M], found: Queue, prefetch: int, lease: float, consumer: str | None) -> None:
        self._source = source
        self._found = found
        self._queue = found.name
        self._prefetch = prefetch
        self._lease = lease
        self._consumer = consumer
        self._ahead: deque[tuple[M, float]] = deque()  # With the time at which the lease was last known to begin.
        self._current: M | None = None
        self._begun = False  # Whether the loop has the current one.
        self._fetching: asyncio.Task[list[M]] | None = None
        self._under_way: set[asyncio.Task[None]] = set()  # Outcomes, and beginnings.
        self._loop = asyncio.get_running_loop()

    async def messages(self, idle: float | None) -> AsyncGenerator[M, None]:
        """Each message of the queue. It is confirmed when the next one is asked for, and given back if the loop is
        left before. With `idle`, the loop ends when no message came for so many seconds."""
        keeping = self._loop.create_task(self._keep_leases())
        try:
            while (message := await self._next(idle)) is not None:
                self._current, self._begun = message, False
                self._begun = await self._begin(message)
                if self._begun:
                    yield message
                self._current = None
                if self._begun and not message.settled:
                    self._settle(message, "success")
        finally:
            keeping.cancel()
            await self._leave()

    async def _next(self, idle: float | None) -> M | None:
        end = None if idle is None else self._loop.time() + idle
        while True:
            if not self._fetching and len(self._ahead) <= self._prefetch // 2:
                self._fetching = self._loop.create_task(self._fetch(idle))
            while self._ahead:
                message, since = self._ahead.popleft()
                if message.settled or self._loop.time() < since + self._lease:  # Else another consumer may have it.
                    return message
            await self._fetched()
            if end is not None and not self._ahead and self._loop.time() >= end:
                return None

    async def _fetch(self, idle: float | None) -> list[M]:
        wait = 20 if idle is None else min(20, idle)
        count = max(1, self._prefetch - len(self._ahead))
        receive = partial(self._source.receive, self._queue, count, wait=wait)
        messages = await _outlasting(
            lambda: receive(lease=self._lease, consumer=self._consumer, ahead=self._found.confirm), self._queue, idle
        )
        if not self._found.confirm:
            for message in messages:
                message.settle()  # It is gone from the queue already.
        return messages

    async def _fetched(self) -> None:
        assert self._fetching is not None
        await asyncio.wait([self._fetching])  # If this is cancelled, the task goes on, and `_leave` ends it.
        task, self._fetching = self._fetching, None
        now = self._loop.time()
        self._ahead.extend([(message, now) for message in task.result()])

    async def _keep_leases(self) -> None:
        while True:
            await asyncio.sleep(self._lease / _EXTENSIONS_PER_LEASE)
            messages = ([self._current] if self._current else []) + [message for message, _ in self._ahead]
            held = [message for message in messages if not message.settled]
            extended = await asyncio.gather(*map(self._extend, held))
            now = self._loop.time()
            still = {message.id for message, done in zip(held, extended, strict=True) if done}
            self._ahead = deque((each, now if each.id in still else since) for each, since in self._ahead)

    async def _extend(self, message: M, *, begin: bool = False) -> bool:
        try:
            await self._source.extend(message, self._lease, begin=begin)
        except errors.ClientError as error:
            logger.warning("the lease of message %s cannot be extended: %s", message.id, error)
            return False
        return True

    async def _begin(self, message: M) -> bool:
        """This delivery counts from now. The broker is told soon, which spares most messages: they are confirmed
        before. With the last delivery it is told first, or the message could be delivered again after it has failed.
        False: it is not ours any more."""
        if message.settled:
            return True
        if self._found.has_failed_after(message.receives):
            return await self._extend(message, begin=True)
        self._loop.call_later(_BEGIN_SECONDS, self._begin_soon, message)
        return True

    def _begin_soon(self, message: M) -> None:
        if message is self._current and not message.settled:
            self._run(self._extend(message, begin=True))

    def _settle(self, message: M, outcome: OutcomeName, *, begun: bool = True) -> None:
        self._run(self._settled(message, outcome, begun=begun))

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        task = self._loop.create_task(coroutine)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _settled(self, message: M, outcome: OutcomeName, *, begun: bool) -> None:
        try:
            await self._source.settle(message, outcome, begun=begun)
        except errors.ClientError as error:
            if outcome != "retry" or not isinstance(error, errors.LeaseGone):  # Else it is given back already.
                logger.warning("message %s may be delivered again: %s", message.id, error)

    async def _leave(self) -> None:
        """Give back what is not done, and wait for what is being confirmed."""
        if self._fetching:
            self._fetching.cancel()
            await asyncio.wait([self._fetching])
            if not self._fetching.cancelled() and not self._fetching.exception():
                self._ahead.extend([(message, 0.0) for message in self._fetching.result()])
        if self._current and not self._current.settled:
            self._settle(self._current, "retry", begun=self._begun)
        for message, _ in self._ahead:
            if not message.settled:
                self._settle(message, "retry", begun=False)
        if self._under_way:
            await asyncio.wait(self._under_way)
