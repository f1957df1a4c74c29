"""Encodes rows of the Event Log as an Arrow stream. Only this format needs pyarrow, so it is imported on first use.

This runs in a thread beside the event loop; each reader uses one thread at a time.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import pyarrow as pa

from penstock.broker.services.event_encoders import Telling, TextOf
from penstock.broker.services.lookup import Array, Lookup
from penstock.limits import NAMES_FOUND_MAX, PIECE_BYTES
from penstock.model.event_log import From, Rows, place
from penstock.model.values import Nanos
from penstock.storage.arrow.columns import COLUMNS, FIXED_COLUMNS, arrow_of, schema
from penstock.storage.letters.columns import NAMES
from penstock.storage.letters.table import Table, table_of

_NONE = -2


class ArrowEncoder:
    """An Arrow IPC stream. Names are dictionaries, to which new names are added."""

    def __init__(self, name: TextOf, queue: TextOf, *, bodies: bool) -> None:
        self._columns = COLUMNS if bodies else FIXED_COLUMNS
        self._texts = {column: _Dictionary(name) for column in NAMES} | {"queue_name": _Dictionary(queue)}
        self._buffer = io.BytesIO()
        self._schema = schema(self._columns, named=True)
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._writer = pa.ipc.new_stream(self._buffer, self._schema, options=options)

    def begin(self, _: From) -> bytes:
        return b""

    def encode(self, rows: Table, next_index: Array) -> Iterator[bytes]:
        del next_index  # A record batch has whole records.
        for part in _parts(self.named(rows)):
            self._writer.write_batch(part)
            yield self._take()

    def reach(self, position: From, passed: Nanos) -> bytes:
        del position, passed
        return b""  # A stream of Arrow has no place for it.

    def catch_up(self, position: From, passed: Nanos) -> bytes:
        del position, passed
        return b""

    def beat(self, position: From) -> bytes:
        del position
        self._writer.write_batch(self.named(table_of(())))
        return self._take()

    def end(self) -> bytes:
        self._writer.close()
        return self._take()

    def named(self, rows: Table) -> pa.RecordBatch:
        arrays = []
        for column in self._columns:
            texts = self._texts.get(column)
            if texts is None:
                arrays.append(arrow_of(rows, column))
            else:
                arrays.append(texts.encode(rows.numbers("queue" if column == "queue_name" else column).values))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _take(self) -> bytes:
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return data


class ArrowRows(Telling):
    """Record batches for the one who merges those of several shards."""

    def __init__(self, name: TextOf, queue: TextOf, *, bodies: bool) -> None:
        self._facts = (name, queue, bodies)

    def encode(self, rows: Table, next_index: Array) -> Iterator[Rows]:
        name, queue, bodies = self._facts
        named = ArrowEncoder(name, queue, bodies=bodies).named(rows)
        for part in _parts(named.append_column("part", pa.array(next_index, pa.int32()))):
            offset, letter = part["offset"][-1].as_py(), part["part"][-1].as_py()
            following = place(From(offset, letter) if letter else From(offset + 1))
            yield Rows(part["time"][0].value, part["time"][-1].value, following, _streamed(part))


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows in batches of bounded size."""
    parts = max(1, min(len(batch), batch.nbytes // (4 * PIECE_BYTES)))
    size = -(-len(batch) // parts)
    for start in range(0, len(batch), size):
        yield batch.slice(start, size)


def _streamed(batch: pa.RecordBatch) -> bytes:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, batch.schema) as stream:
        stream.write_batch(batch)
    return buffer.getvalue()


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
