"""The events of several shards as one stream, in the order of their times.

The next event is known when every other shard has passed its time: with an event of its own, or with a mark that says
so, of events that nobody asked for or of the end of its log. What happened before a reader came is shown in order,
however long that takes. After that nobody knows how far a shard is that lags behind: an event is shown in its turn if
the others pass its time within a moment, and else without them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from penstock.cluster.links.flows import MergedSource, Pieces
from penstock.limits import PIECE_BYTES
from penstock.model.event_log import Events, EventText, ReadEvents, Rows, Word
from penstock.model.streams import Flow
from penstock.model.values import Nanos

_MOMENT_SECONDS = 0.03


def joined(query: ReadEvents, flows: Mapping[int, Flow]) -> Flow:
    """The flows of all shards as one: of `Events`, or of bytes in Arrow."""
    pieces = [Pieces(flow.source) for flow in flows.values()]
    order = Order([LogReader(*each) for each in enumerate(pieces)], is_followed=query.follow)
    return Flow(MergedSource(merged(order, _writer(query, order), query.limit), pieces))


def _writer(query: ReadEvents, order: Order) -> Writer:
    if query.form == "text":
        return EventsWriter(order)
    from penstock.cluster.routing.merged_arrow import ArrowWriter  # Only this needs pyarrow.

    return ArrowWriter(order, bodies=query.bodies)


class _Piece(NamedTuple):
    """Events that came together."""

    came_at: float
    last: Nanos  # The time of the last one.
    size: int


class LogReader:
    """Reads the events of one shard: texts, or record batches."""

    passed: Nanos = -1  # No event that is still to come has an earlier time.

    def __init__(self, shard: int, pieces: Pieces) -> None:
        self.pieces = pieces
        self.events: deque[EventText | Rows] = deque()  # Read, and not shown.
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

    def late(self, before: float) -> Nanos:
        """The time of the last event that came before a moment; that of no event if there is none."""
        return max((piece.last for piece in self._pieces if piece.came_at <= before), default=LogReader.passed)

    def reading(self, *, ahead: bool = False) -> asyncio.Task[None] | None:
        """What reads on, if it is wanted: while nothing is read, or `ahead`, so that events that are kept for a
        moment do not hold up those that come after them."""
        if self._task is None and (self.is_waiting or (ahead and not self.is_over and self._has_room)):
            self._task = asyncio.create_task(self._read())
        return self._task

    @property
    def _has_room(self) -> bool:
        return sum(piece.size for piece in self._pieces) < PIECE_BYTES

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
                self._pieces.append(_Piece(came_at, self.events[-1].time, piece.size))
            return
        self.is_over = True

    def take(self, piece: Events | Rows | bytes) -> None:
        if isinstance(piece, Rows):
            self.events.append(piece)
            self.passed = piece.passed
        elif isinstance(piece, Events):  # Else it is empty.
            self.events.extend(piece.events)
            if piece.events:
                self.passed = piece.events[-1].time
            if piece.word:
                self.mark(piece.reached[0], piece.word, piece.passed)

    def mark(self, position: bytes, word: Word, passed: Nanos) -> None:
        """How far it has come: `past` other events, up to where the log ended a moment ago (`live`), or nowhere
        (`beat`)."""
        self.passed = max(self.passed, passed)
        self.is_live = self.is_live or word == "live"
        self.has_beaten = self.has_beaten or word == "beat"
        if not self.events:
            self.has_moved = self.has_moved or self.reached != position
            self.reached = position


class Order:
    """Which event comes next."""

    def __init__(self, readers: Sequence[LogReader], *, is_followed: bool) -> None:
        self.readers = readers
        self._is_followed = is_followed
        self._late: Nanos = LogReader.passed  # Up to this time all is shown, even if some lag behind.

    def next(self) -> LogReader | None:
        """The reader with the next event; None if it is not known yet. One loop: it is asked for each event."""
        first: LogReader | None = None
        time: Nanos = 0  # Of the earliest event;
        passed: Nanos | None = None  # and of the reader that lags behind most.
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
    """Makes pieces of what readers have read."""

    written: int  # Events.

    def begin(self) -> Any: ...

    def piece(self, limit: int | None, word: Word) -> Any:
        """The next events, as far as they are known, and the word after them; None if there is nothing to say."""

    def end(self) -> Any: ...


async def merged(order: Order, writer: Writer, limit: int | None) -> AsyncGenerator[Any, None]:
    """Pieces of the merged stream."""
    readers = order.readers
    try:
        await asyncio.wait([task for reader in readers if (task := reader.reading())])  # Each says where it begins.
        for reader in readers:
            reader.check()
        yield writer.begin()
        _word(readers)  # It is where they begin.
        while limit != writer.written and not all(reader.is_over and not reader.events for reader in readers):
            await order.read()
            if piece := writer.piece(limit, _word(readers)):
                yield piece
        if end := writer.end():
            yield end
    finally:
        for reader in readers:
            reader.cancel()


def _word(readers: Sequence[LogReader]) -> Word:
    """That the connection is alive, or that all shards have come further without an event to show."""
    has_beaten = any(reader.has_beaten for reader in readers)
    has_moved = any(reader.has_moved for reader in readers)
    for reader in readers:
        reader.has_beaten = reader.has_moved = False
    return "beat" if has_beaten else "past" if has_moved else ""


class EventsWriter:
    def __init__(self, order: Order) -> None:
        self.written = 0
        self._order, self._readers = order, order.readers

    def begin(self) -> Events:
        return Events(self._reached, word="begin")

    def piece(self, limit: int | None, word: Word) -> Events | None:
        events: list[Any] = []
        size = 0
        while size < PIECE_BYTES and limit != self.written and (reader := self._order.next()):
            event: Any = reader.events.popleft()
            reader.reached = event.following
            self.written += 1
            events.append(event)
            size += len(event.text)
        return Events(self._reached, events, word) if events or word else None

    def end(self) -> None:
        """Nothing is left to be said."""

    @property
    def _reached(self) -> list[bytes]:
        return [reader.reached for reader in self._readers]
