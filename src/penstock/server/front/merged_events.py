"""The events of several shards as one stream, in the order of their times.

Events of the past are in order. At the ends of the logs nobody knows which shard has the next event: one that was
read is shown when the others have had a moment to show an earlier one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.limits import PIECE_BYTES
from penstock.server.front.asking import Pieces

_MOMENT_SECONDS = 0.05
_TIME_BYTES = len("2026-01-01T00:00:00.000000000Z")


class _Event(NamedTuple):
    time: bytes
    shard: int
    following: bytes  # Where a reader that has handled it continues, in its shard.
    offset: bytes  # The document up to `next`, and after it.
    rest: bytes


class LogReader:
    """Reads the events of one shard, as Server-Sent Events."""

    def __init__(self, shard: int, pieces: Pieces) -> None:
        self.pieces = pieces
        self.events: deque[Any] = deque()  # Read, and not shown. Each has a `time` and a `shard`.
        self.reached = b"0"  # Where the reader continues after what was shown.
        self.is_over = False
        self.has_beaten = False  # It has nothing new for some time.
        self.shard = shard
        self._task: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether it must be read before the next event is known."""
        return not self.events and not self.is_over

    def reading(self) -> asyncio.Task[None]:
        if self._task is None:
            self._task = asyncio.create_task(self._read())
        return self._task

    def check(self) -> None:
        """Raises what has ended its stream too early."""
        if self._task and self._task.done():
            task, self._task = self._task, None
            task.result()

    def cancel(self) -> None:
        if self._task:
            self._task.cancel()

    async def _read(self) -> None:
        async for piece in self.pieces:
            self.take(piece)
            return
        self.is_over = True

    def take(self, piece: bytes) -> None:
        for block in piece.split(b"\n\n"):
            self._take(block)

    def _take(self, block: bytes) -> None:
        """An event, or a position that was reached without one."""
        position, _, data = block.partition(b"\ndata: ")
        _, is_there, following = position.rpartition(b"id: ")
        if data:
            offset, _, tail = data.partition(b'"next":"')
            rest = tail.partition(b'"')[2]
            time = rest.partition(b'"time":"')[2][:_TIME_BYTES]
            self.events.append(_Event(time, self.shard, following, offset, rest))
        elif is_there:
            self.reached = following
            self.has_beaten = block.startswith(b":")


class Writer(Protocol):
    """Writes what readers have read."""

    written: int  # Events.

    def begin(self) -> bytes: ...
    def events(self, limit: int | None) -> bytes: ...
    def beat(self) -> bytes: ...
    def end(self) -> bytes: ...


async def merged(
    readers: Sequence[LogReader], writer: Writer, limit: int | None, *, is_followed: bool
) -> AsyncGenerator[bytes, None]:
    """Pieces of the merged stream."""
    try:
        await asyncio.wait([reader.reading() for reader in readers])  # Each says where it begins.
        yield writer.begin()
        while limit != writer.written and not all(reader.is_over for reader in readers):
            await _read(readers, patient=not is_followed)
            yield writer.events(limit) + writer.beat()
        while limit != writer.written and any(reader.events for reader in readers):
            yield writer.events(limit)
        yield writer.end()
    finally:
        for reader in readers:
            reader.cancel()


async def _read(readers: Sequence[LogReader], *, patient: bool) -> None:
    """Until the next event is known, or probably is."""
    while waiting := [reader for reader in readers if reader.is_waiting]:
        are_some_read = any(reader.events for reader in readers)
        timeout = _MOMENT_SECONDS if are_some_read and not patient else None
        tasks = [reader.reading() for reader in waiting]
        done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for reader in waiting:
            reader.check()
        if not done or any(reader.has_beaten for reader in waiting):
            return


class TextWriter:
    """Writes events with the cursor of all shards."""

    def __init__(self, readers: Sequence[LogReader], *, as_sent_events: bool) -> None:
        self.written = 0
        self._readers = readers
        self._as_sent_events = as_sent_events

    def begin(self) -> bytes:
        for reader in self._readers:
            reader.check()
        return b"id: %b\n\n" % cursor_of(self._readers) if self._as_sent_events else b""

    def events(self, limit: int | None) -> bytes:
        """The events that were read, in order, as long as every shard has one or has waited long enough."""
        shown: list[bytes] = []
        size = 0
        waiting = {id(reader) for reader in self._readers if reader.is_waiting}
        while size < PIECE_BYTES and limit != self.written:
            reader = first_of(self._readers)
            if reader is None:
                break
            shown.append(self._shown(reader))
            size += len(shown[-1])
            if reader.is_waiting and id(reader) not in waiting:
                break
        return b"".join(shown)

    def beat(self) -> bytes:
        """Keeps the connection alive, and says how far all shards have come."""
        if not any(reader.has_beaten for reader in self._readers):
            return b""
        for reader in self._readers:
            reader.has_beaten = False
        return b": beat\nid: %b\n\n" % cursor_of(self._readers) if self._as_sent_events else b"\n"

    def _shown(self, reader: LogReader) -> bytes:
        event = reader.events.popleft()
        reader.reached = event.following
        self.written += 1
        cursor = cursor_of(self._readers)
        data = b'{"shard":%d,%b"next":"%b"%b' % (event.shard, event.offset[1:], cursor, event.rest)
        return b"id: %b\ndata: %b\n\n" % (cursor, data) if self._as_sent_events else data + b"\n"

    def end(self) -> bytes:
        return b""


def cursor_of(readers: Sequence[LogReader]) -> bytes:
    return b",".join([b"%d:%b" % (shard, reader.reached) for shard, reader in enumerate(readers)])


def first_of(readers: Sequence[LogReader]) -> LogReader | None:
    """The one that has the earliest event; None if no events are read."""
    return min((each for each in readers if each.events), key=_next_time, default=None)


def _next_time(reader: LogReader) -> tuple[Any, int]:
    return reader.events[0].time, reader.events[0].shard
