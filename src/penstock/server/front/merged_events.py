"""The events of several shards as one stream, in the order of their times.

The next event is known when every other shard has passed its time: with an event of its own, or with a mark that says
so, of events that nobody asked for or of the end of its log. What happened before a reader came is shown in order,
however long that takes. After that nobody knows how far a shard is that lags behind: an event is shown in its turn if
the others pass its time within a moment, and else without them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.cluster.links.flows import Pieces
from penstock.limits import PIECE_BYTES

_MOMENT_SECONDS = 0.03
_TIME_BYTES = len("2026-01-01T00:00:00.000000000Z")


class _Event(NamedTuple):
    time: bytes
    shard: int
    following: bytes  # Where a reader that has handled it continues, in its shard.
    offset: bytes  # The document up to `next`, and after it.
    rest: bytes


class _Piece(NamedTuple):
    """Events that came together."""

    came_at: float
    last: Any  # The time of the last one.
    bytes: int


class LogReader:
    """Reads the events of one shard, as Server-Sent Events."""

    passed: Any = b""  # No event that is still to come has an earlier time.

    def __init__(self, shard: int, pieces: Pieces) -> None:
        self.pieces = pieces
        self.events: deque[Any] = deque()  # Read, and not shown. Each has a `time` and a `shard`.
        self.reached = b"0"  # Where the reader continues after what was shown.
        self.is_over = False
        self.is_live = False  # It has read everything that happened before it began.
        self.has_beaten = False  # It has nothing new for some time.
        self.has_moved = False  # It has come further, without an event.
        self.shard = shard
        self._task: asyncio.Task[None] | None = None
        self._pieces: deque[_Piece] = deque()  # Of the events, and perhaps of some that were shown.

    @property
    def is_waiting(self) -> bool:
        """Whether it must be read before the next event is known."""
        return not self.events and not self.is_over

    @property
    def oldest(self) -> _Piece | None:
        """Of those with events that are not shown."""
        while self._pieces and not (self.events and self._pieces[0].last >= self.events[0].time):
            self._pieces.popleft()
        return self._pieces[0] if self._pieces else None

    def late(self, before: float) -> Any:
        """The time of the last event that came before a moment; that of no event if there is none."""
        return max((piece.last for piece in self._pieces if piece.came_at <= before), default=type(self).passed)

    def reading(self, *, ahead: bool = False) -> asyncio.Task[None] | None:
        """What reads on, if it is wanted: while nothing is read, or `ahead`, so that events that are kept for a
        moment do not hold up those that come after them."""
        if self._task is None and (self.is_waiting or (ahead and not self.is_over and self._has_room)):
            self._task = asyncio.create_task(self._read())
        return self._task

    @property
    def _has_room(self) -> bool:
        return sum(piece.bytes for piece in self._pieces) < PIECE_BYTES

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
            known = len(self.events)
            self.take(piece)
            if len(self.events) > known:
                came_at = asyncio.get_running_loop().time()
                self._pieces.append(_Piece(came_at, self.events[-1].time, len(piece)))
            return
        self.is_over = True

    def take(self, piece: bytes) -> None:
        for block in piece.split(b"\n\n"):
            self._take(block)

    def _take(self, block: bytes) -> None:
        """An event, or a position that was reached without one: `: past TIME`, or another word, and its `id`."""
        position, _, data = block.partition(b"\ndata: ")
        mark, is_there, following = position.rpartition(b"id: ")
        if data:
            offset, _, tail = data.partition(b'"next":"')
            rest = tail.partition(b'"')[2]
            time = rest.partition(b'"time":"')[2][:_TIME_BYTES]
            self.events.append(_Event(time, self.shard, following, offset, rest))
            self.passed = time
        elif is_there:
            word, _, time = mark[2:].rstrip().partition(b" ")
            self.mark(following, word, time)

    def mark(self, position: bytes, word: bytes, passed: Any) -> None:
        """How far it has come: `past` other events, up to where the log ended a moment ago (`live`), or nowhere
        (`beat`)."""
        self.passed = max(self.passed, passed)
        self.is_live = self.is_live or word == b"live"
        self.has_beaten = self.has_beaten or word == b"beat"
        if not self.events:
            self.has_moved = self.has_moved or self.reached != position
            self.reached = position


class Order:
    """Which event comes next."""

    def __init__(self, readers: Sequence[LogReader], *, is_followed: bool) -> None:
        self.readers = readers
        self._is_followed = is_followed
        self._late: Any = type(readers[0]).passed  # Up to this time all is shown, even if some lag behind.

    def next(self) -> LogReader | None:
        """The reader with the next event; None if it is not known yet. One loop: it is asked for each event."""
        first: LogReader | None = None
        time = passed = None  # Of the earliest event, and of the reader that lags behind most.
        for reader in self.readers:
            if reader.events:
                if first is None or reader.events[0].time < time:
                    first, time = reader, reader.events[0].time
            elif not reader.is_over and (passed is None or reader.passed < passed):
                passed = reader.passed
        return first if first and (passed is None or time <= passed or time <= self._late) else None

    async def read(self) -> None:
        """Until the next event is known, or there is something else to say."""
        while self.next() is None:
            tasks = [task for each in self.readers if (task := each.reading(ahead=self._is_followed))]
            if not tasks:
                return
            await asyncio.wait(tasks, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
            for reader in self.readers:
                reader.check()
            self._hurry()
            if any(reader.has_beaten or reader.has_moved for reader in self.readers):
                return

    @property
    def _is_live(self) -> bool:
        return self._is_followed and all(reader.is_live or reader.is_over for reader in self.readers)

    def _patience(self) -> float | None:
        """How long the oldest event can wait for its turn; None: as long as it takes."""
        oldest = [piece.came_at for reader in self.readers if (piece := reader.oldest)]
        if not oldest or not self._is_live:
            return None
        return max(0.0, min(oldest) + _MOMENT_SECONDS - asyncio.get_running_loop().time())

    def _hurry(self) -> None:
        if self._is_live:
            before = asyncio.get_running_loop().time() - _MOMENT_SECONDS
            self._late = max(self._late, *[reader.late(before) for reader in self.readers])


class Writer(Protocol):
    """Writes what readers have read."""

    written: int  # Events.

    def begin(self) -> bytes: ...
    def events(self, limit: int | None) -> bytes: ...
    def progress(self) -> bytes: ...
    def beat(self) -> bytes: ...
    def end(self) -> bytes: ...


async def merged(order: Order, writer: Writer, limit: int | None) -> AsyncGenerator[bytes, None]:
    """Pieces of the merged stream."""
    readers = order.readers
    try:
        await asyncio.wait([task for reader in readers if (task := reader.reading())])  # Each says where it begins.
        yield writer.begin()
        _said(readers, writer)  # It is where they begin.
        while limit != writer.written and not all(reader.is_over and not reader.events for reader in readers):
            await order.read()
            if piece := writer.events(limit) + _said(readers, writer):
                yield piece
        yield writer.end()
    finally:
        for reader in readers:
            reader.cancel()


def _said(readers: Sequence[LogReader], writer: Writer) -> bytes:
    """That the connection is alive, or how far all shards have come without an event to show."""
    has_beaten = any(reader.has_beaten for reader in readers)
    has_moved = any(reader.has_moved for reader in readers)
    for reader in readers:
        reader.has_beaten = reader.has_moved = False
    return writer.beat() if has_beaten else writer.progress() if has_moved else b""


class TextWriter:
    """Writes events with the cursor of all shards."""

    def __init__(self, order: Order, *, as_sent_events: bool) -> None:
        self.written = 0
        self._order, self._readers = order, order.readers
        self._as_sent_events = as_sent_events

    def begin(self) -> bytes:
        for reader in self._readers:
            reader.check()
        return b"id: %b\n\n" % cursor_of(self._readers) if self._as_sent_events else b""

    def events(self, limit: int | None) -> bytes:
        """The next events, as far as they are known."""
        shown: list[bytes] = []
        size = 0
        while size < PIECE_BYTES and limit != self.written and (reader := self._order.next()):
            shown.append(self._shown(reader))
            size += len(shown[-1])
        return b"".join(shown)

    def progress(self) -> bytes:
        return b"id: %b\n\n" % cursor_of(self._readers) if self._as_sent_events else b""

    def beat(self) -> bytes:
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
