"""Encodes rows of the Event Log for a client: as JSON lines, Server-Sent Events, or an Arrow stream.

This runs in a thread beside the event loop; each reader uses one thread at a time.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.dialects.native.event_log import From
from penstock.dialects.native.event_text import Event, EventWriter
from penstock.limits import NAMES_FOUND_MAX, PIECE_BYTES
from penstock.server.services.lookup import Array, Lookup
from penstock.storage.arrow.columns import COLUMNS, FIXED_COLUMNS, HEAP_COLUMNS, TYPES, schema

TextOf = Callable[[int], str | None]

_NONE = -2
_NAMES = ("consumer", "content_type", "sender", "object", "topics")
_EVENTS_AT_ONCE = 256  # Rows that are converted to Python values together.
_EVENT_COLUMNS = tuple(name for name in Event.__struct_fields__ if name != "following")

assert _EVENT_COLUMNS[-len(HEAP_COLUMNS) :] == HEAP_COLUMNS, "rows without bodies lack the last fields of an event"
assert set(_EVENT_COLUMNS) == set(COLUMNS) - {"queue_name"}


class Encoder(Protocol):
    """Encodes rows in one of the formats that a client can ask for."""

    def begin(self, position: From) -> bytes:
        """The first bytes of the stream, possibly none."""

    def encode(self, rows: pa.RecordBatch, next_index: Array) -> Iterator[bytes]:
        """Encode rows in bounded pieces. `next_index`: for each row, the index of its record's next letter; 0 for
        none."""

    def beat(self, position: From) -> bytes:
        """Bytes without meaning that keep the connection alive."""

    def end(self) -> bytes: ...


class TextEncoder:
    """JSON lines, or Server-Sent Events."""

    def __init__(self, writer: EventWriter, *, sent_events: bool) -> None:
        self._write = writer.sent_events if sent_events else writer.lines
        self._sent_events = sent_events

    def begin(self, position: From) -> bytes:
        # A client that loses the connection before the first event resumes here.
        part = b".%d" % position.part if position.part else b""
        return b"id: %d%b\n\n" % (position.offset, part) if self._sent_events else b""

    def encode(self, rows: pa.RecordBatch, next_index: Array) -> Iterator[bytes]:
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
        # An id without data updates the client's position without an event.
        return b": beat\nid: %d\n\n" % position.offset if self._sent_events else b"\n"

    def end(self) -> bytes:
        return b""


def next_index_of(offsets: Array) -> Array:
    """For each row, the index of the next letter of its record, counted from 0; 0 if it is the last one."""
    if not len(offsets):
        return offsets
    rows = np.arange(len(offsets))
    begins = np.ones(len(offsets), dtype=np.bool_)
    begins[1:] = offsets[1:] != offsets[:-1]
    index = rows - np.maximum.accumulate(np.where(begins, rows, 0)) + 1
    ends = np.append(begins[1:], True)
    index[ends] = 0
    return index


def as_events(rows: pa.RecordBatch, next_index: Array) -> Iterator[Event]:
    there = set(rows.schema.names)
    rows = rows.select([name for name in _EVENT_COLUMNS if name in there])
    for start in range(0, len(rows), _EVENTS_AT_ONCE):
        part = rows.slice(start, _EVENTS_AT_ONCE)
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
        return list(column.to_numpy().tolist())  # Ten times as fast as Arrow's `to_pylist`.
    values = column.fill_null(0).to_numpy().astype(object)
    values[column.is_null().to_numpy(zero_copy_only=False)] = None
    return list(values.tolist())


class ArrowEncoder:
    """An Arrow IPC stream. Names are dictionaries, to which new names are added."""

    def __init__(self, name: TextOf, queue: TextOf, *, bodies: bool) -> None:
        self._columns = COLUMNS if bodies else FIXED_COLUMNS
        self._texts = {column: _Dictionary(name) for column in _NAMES} | {"queue_name": _Dictionary(queue)}
        self._buffer = io.BytesIO()
        self._schema = schema(self._columns, named=True)
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_stream(self._buffer, self._schema, options=options)

    def begin(self, _: From) -> bytes:
        return b""

    def encode(self, rows: pa.RecordBatch, next_index: Array) -> Iterator[bytes]:
        del next_index  # A record batch has whole records.
        named = self._named(rows)
        parts = max(1, min(len(rows), named.nbytes // (4 * PIECE_BYTES)))
        size = -(-len(rows) // parts)
        for start in range(0, len(rows), size):
            self._writer.write_batch(named.slice(start, size))
            yield self._take()

    def beat(self, position: From) -> bytes:
        del position
        self._writer.write_batch(self._named(_no_rows(self._columns)))
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


def _no_rows(columns: Iterable[str]) -> pa.RecordBatch:
    plain = [name for name in columns if name != "queue_name"]
    return pa.RecordBatch.from_arrays(
        [pa.array([], pa.int32() if name in _NAMES else TYPES[name]) for name in plain], names=plain
    )


class _Dictionary:
    """Texts by number, as an Arrow dictionary to which new texts are added."""

    def __init__(self, text_of: TextOf) -> None:
        self._text_of = text_of
        self._begin()

    def _begin(self) -> None:
        self._texts: list[str] = []
        self._array = pa.array([], pa.utf8())
        self._lookup = Lookup(self._add)

    def encode(self, numbers: Array) -> pa.DictionaryArray:
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
