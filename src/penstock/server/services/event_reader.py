"""One reader of the Event Log: from bytes on the disk to bytes for the client, a bounded piece at a time.

Everything here runs in a thread beside the event loop, in one at a time for each reader.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.dialects.native.events import Event, EventWriter
from penstock.dialects.native.queues import EventQuery, From
from penstock.limits import NAMES_FOUND_MAX, PIECE_BYTES, READ_BYTES
from penstock.model.values import Position
from penstock.server.services.following import Followed, LookBack
from penstock.storage.arrow.columns import COLUMNS, FIXED_COLUMNS, HEAP_COLUMNS, TYPES, decode, schema
from penstock.storage.log.batch import Batches
from penstock.storage.log.view import Cursor, View

_Array = NDArray[Any]
_TextOf = Callable[[int], str | None]

_UNSEEN = -1
_NONE = -2
_TABLE_SIZE_MAX = 1 << 22  # A table of a number for each number is not made larger than this.
_NAMES = ("consumer", "content_type", "sender", "object", "topics")
_PLAIN_COLUMNS = tuple(name for name in FIXED_COLUMNS if name != "queue_name")
_ALL_COLUMNS = (*_PLAIN_COLUMNS, *HEAP_COLUMNS)


class Encoder(Protocol):
    """Rows to bytes, in one of the forms that a client can ask for."""

    def begin(self, position: From) -> bytes:
        """What is said first, if anything is."""

    def encode(self, rows: pa.RecordBatch, next_index: _Array) -> Iterator[bytes]:
        """The rows in bounded pieces. `next_index`: of each, which letter of its record follows; 0 for none."""

    def beat(self, position: From) -> bytes:
        """Something that says nothing, but that the connection lives."""

    def end(self) -> bytes: ...


class EventReader:
    """Reads what a query asks for."""

    def __init__(
        self,
        query: EventQuery,
        start: From,
        position: Position,
        name: _TextOf,
        queue: _TextOf,
        encoder: Encoder,
    ) -> None:
        self._start = start
        self._since = query.since
        self._left = query.limit
        self._columns = _ALL_COLUMNS if query.bodies else _PLAIN_COLUMNS
        self._encoder = encoder
        self._cursor = Cursor(position)
        self._pieces: Iterator[bytes] = filter(None, [encoder.begin(start)])
        self._states = _letters(query.states) if query.states else None
        self._queues = _Lookup(lambda number: int(queue(number) in query.queues)) if query.queues else None
        topics = _Lookup(lambda number: int(_matches(name(number), query.topics)))
        self._followed = Followed(lambda numbers: topics(numbers) == 1) if query.topics else None
        self._look_back = LookBack(self._followed, start.offset) if self._followed else None
        self._held: Batches = []  # Until the reader knows whom they are about.
        self.next = start

    @property
    def exhausted(self) -> bool:
        """The limit is reached."""
        return self._left == 0

    def read(self, view: View) -> bytes | None:
        """The next piece: None at the end of the view, empty if what was read had nothing to show."""
        piece = next(self._pieces, None)
        if piece is not None:
            return piece
        if self.exhausted:
            return None
        if self._look_back and self._look_back.under_way:
            self._look_back.step(view)
            return b""
        batches, self._held = self._held or self._cursor.read(view, READ_BYTES), []
        if not batches:
            return None
        rows = decode(batches, self._columns)
        if self._look_back and self._look_back.is_needed(view, rows, batches):
            self._held = batches
            return b""
        if self._followed:
            self._followed.learn(rows)
        rows, next_index = self._chosen(rows)
        self.next = From(batches[-1][0].base_offset + batches[-1][0].records)
        if self._left is not None:
            rows, next_index = rows.slice(0, self._left), next_index[: self._left]
            self._left -= len(rows)
        if not len(rows):
            return b""
        self._pieces = self._encoder.encode(rows, next_index)
        return next(self._pieces, b"")

    def beat(self) -> bytes:
        return self._encoder.beat(self.next)

    def end(self) -> bytes:
        return self._encoder.end()

    def close(self) -> None:
        self._cursor.close()
        if self._look_back:
            self._look_back.close()

    def _chosen(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, _Array]:
        offsets = rows.column("offset").to_numpy()
        next_index = next_index_of(offsets)
        first = int(np.searchsorted(offsets, self._start.offset))
        if first < len(offsets) and offsets[first] == self._start.offset:
            first += self._start.part
            if first < len(offsets) and offsets[first] != self._start.offset:
                first = int(np.searchsorted(offsets, self._start.offset, side="right"))
        if first:
            rows, next_index = rows.slice(first), next_index[first:]
        mask = self._mask(rows)
        if mask is not None and not mask.all():
            rows, next_index = rows.filter(pa.array(mask)), next_index[mask]
        return rows, next_index

    def _mask(self, rows: pa.RecordBatch) -> NDArray[np.bool_] | None:
        mask: NDArray[np.bool_] | None = None
        if self._since:
            mask = _also(mask, rows.column("time").cast(pa.int64()).to_numpy() >= self._since)
        if self._states is not None:
            mask = _also(mask, self._states.take(_bytes_of(rows.column("letter"))))
        if self._queues:
            mask = _also(mask, self._queues(rows.column("queue").to_numpy()) == 1)
        if self._followed:
            mask = _also(mask, self._followed.mask(rows))
        return mask


# ── Choosing rows ─────────────────────────────────────────────────────────────────────────────────────────────


class _Lookup:
    """A number for each number, found out when it is first seen: then one gather for a whole column."""

    def __init__(self, find: Callable[[int], int]) -> None:
        self._find = find
        self._table = np.full(256, _UNSEEN, dtype=np.int32)
        self._far: dict[int, int] = {}  # Of a column with numbers too large for a table.

    def __call__(self, numbers: _Array) -> _Array:
        if not len(numbers):
            return numbers
        top = int(numbers.max())
        if top >= _TABLE_SIZE_MAX:
            return self._look_far(numbers)
        if top >= len(self._table):
            grown = np.full(max(top + 1, 2 * len(self._table)), _UNSEEN, dtype=np.int32)
            grown[: len(self._table)] = self._table
            self._table = grown
        found: _Array = self._table.take(numbers)
        unseen = numbers[found == _UNSEEN]
        if len(unseen):
            for number in np.unique(unseen).tolist():
                self._table[number] = self._find(number)
            found = self._table.take(numbers)
        return found

    def _look_far(self, numbers: _Array) -> _Array:
        distinct, places = np.unique(numbers, return_inverse=True)
        for number in distinct.tolist():
            if number not in self._far:
                seen = int(self._table[number]) if number < len(self._table) else _UNSEEN
                self._far[number] = self._find(number) if seen == _UNSEEN else seen
        found: _Array = np.array([self._far[number] for number in distinct.tolist()], dtype=np.int32)[places]
        return found


def _also(mask: NDArray[np.bool_] | None, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return chosen if mask is None else mask & chosen


def _letters(states: str) -> NDArray[np.bool_]:
    wanted = np.zeros(256, dtype=np.bool_)
    wanted[[ord(letter) for letter in states]] = True
    return wanted


def _bytes_of(letters: pa.Array) -> _Array:
    """Text of one byte each, as numbers."""
    values: _Array = np.frombuffer(letters.buffers()[2], dtype=np.uint8, count=len(letters), offset=letters.offset)
    return values


def _matches(topics: str | None, patterns: Iterable[str]) -> bool:
    """Whether one of a message's topics is one of those asked for."""
    return any(
        topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern
        for topic in (topics or "").split("\n")
        if topic
        for pattern in patterns
    )


def next_index_of(offsets: _Array) -> _Array:
    """Of each row: which letter of the same record comes next, counted from 0; 0 if it was the last one."""
    if not len(offsets):
        return offsets
    rows = np.arange(len(offsets))
    begins = np.ones(len(offsets), dtype=np.bool_)
    begins[1:] = offsets[1:] != offsets[:-1]
    index = rows - np.maximum.accumulate(np.where(begins, rows, 0)) + 1
    ends = np.append(begins[1:], True)
    index[ends] = 0
    return index


# ── Forms ─────────────────────────────────────────────────────────────────────────────────────────────────────


class TextEncoder:
    """JSON lines, or Server-Sent Events."""

    def __init__(self, writer: EventWriter, *, sent_events: bool) -> None:
        self._write = writer.sent_events if sent_events else writer.lines
        self._sent_events = sent_events

    def begin(self, position: From) -> bytes:
        # So that a client that loses the connection before the first event comes back to this very place.
        part = b".%d" % position.part if position.part else b""
        return b"id: %d%b\n\n" % (position.offset, part) if self._sent_events else b""

    def encode(self, rows: pa.RecordBatch, next_index: _Array) -> Iterator[bytes]:
        piece: list[bytes] = []
        size = 0
        for text in self._write(as_events(rows, next_index)):
            piece.append(text)
            size += len(text)
            if size >= PIECE_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
        if piece:
            yield b"".join(piece)

    def beat(self, position: From) -> bytes:
        # An id without data moves a client on without telling it anything.
        return b": beat\nid: %d\n\n" % position.offset if self._sent_events else b"\n"

    def end(self) -> bytes:
        return b""


_EVENTS_AT_ONCE = 256  # Rows that are turned into Python's values together.
# An event is made from the columns of its fields, in their order.
_EVENT_COLUMNS = [name for name in Event.__struct_fields__ if name != "following"]
assert sorted(_EVENT_COLUMNS) == sorted(_ALL_COLUMNS)
assert Event.__struct_fields__[:2] == ("offset", "following")
assert tuple(_EVENT_COLUMNS[-len(HEAP_COLUMNS) :]) == HEAP_COLUMNS  # So they may be missing together.


def as_events(rows: pa.RecordBatch, next_index: _Array) -> Iterator[Event]:
    chosen = rows.select([name for name in _EVENT_COLUMNS if name in rows.schema.names])
    for start in range(0, len(rows), _EVENTS_AT_ONCE):
        part = chosen.slice(start, _EVENTS_AT_ONCE)
        following = next_index[start : start + _EVENTS_AT_ONCE].tolist()
        offsets, *columns = [_values(column) for column in part.columns]
        yield from map(Event, offsets, following, *columns)


def _values(column: pa.Array) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if column.null_count == len(column):
        return [None] * len(column)
    if not pa.types.is_integer(column.type):
        return list(column.to_pylist())
    if column.null_count == 0:
        return list(column.to_numpy().tolist())  # Ten times as fast as Arrow's own way.
    values = column.fill_null(0).to_numpy().astype(object)
    values[column.is_null().to_numpy(zero_copy_only=False)] = None
    return list(values.tolist())


class ArrowEncoder:
    """An Arrow IPC stream. Names are dictionaries that hold what has occurred so far."""

    def __init__(self, name: _TextOf, queue: _TextOf, *, bodies: bool) -> None:
        self._columns = COLUMNS if bodies else FIXED_COLUMNS
        self._texts = {column: _Dictionary(name) for column in _NAMES} | {"queue_name": _Dictionary(queue)}
        self._buffer = io.BytesIO()
        self._schema = schema(self._columns, named=True)
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_stream(self._buffer, self._schema, options=options)

    def begin(self, _: From) -> bytes:
        return b""

    def encode(self, rows: pa.RecordBatch, next_index: _Array) -> Iterator[bytes]:
        del next_index  # A record batch has whole records.
        named = self._named(rows)
        parts = max(1, min(len(rows), named.nbytes // (4 * PIECE_BYTES)))
        size = -(-len(rows) // parts)
        for start in range(0, len(rows), size):
            self._writer.write_batch(named.slice(start, size))
            yield self._take()

    def beat(self, position: From) -> bytes:
        del position
        self._writer.write_batch(self._named(_nothing(self._columns)))
        return self._take()

    def end(self) -> bytes:
        self._writer.close()
        return self._take()

    def _named(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        arrays = []
        for column in self._columns:
            texts = self._texts.get(column)
            if texts is None:
                arrays.append(rows.column(column))
            else:
                arrays.append(texts.encode(rows.column("queue" if column == "queue_name" else column).to_numpy()))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _take(self) -> bytes:
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return data


def _nothing(columns: Iterable[str]) -> pa.RecordBatch:
    plain = [name for name in columns if name != "queue_name"]
    return pa.RecordBatch.from_arrays(
        [pa.array([], pa.int32() if name in _NAMES else TYPES[name]) for name in plain], names=plain
    )


class _Dictionary:
    """Numbers to text, as an Arrow dictionary that grows by what is new."""

    def __init__(self, text_of: _TextOf) -> None:
        self._text_of = text_of
        self._begin()

    def _begin(self) -> None:
        self._texts: list[str] = []
        self._array = pa.array([], pa.utf8())
        self._lookup = _Lookup(self._add)

    def encode(self, numbers: _Array) -> pa.DictionaryArray:
        if len(self._texts) > NAMES_FOUND_MAX:
            self._begin()
        found = self._lookup(numbers)
        if len(self._texts) > len(self._array):
            self._array = pa.array(self._texts, pa.utf8())
        indices = pa.array(found, pa.int32(), mask=found == _NONE)
        return pa.DictionaryArray.from_arrays(indices, self._array, safe=False)

    def _add(self, number: int) -> int:
        text = self._text_of(number)
        if text is None:
            return _NONE
        self._texts.append(text)
        return len(self._texts) - 1
