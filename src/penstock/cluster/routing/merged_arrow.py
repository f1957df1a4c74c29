"""The events of several shards as one Arrow stream. Only this format needs pyarrow, so it is imported on first use.

Each record batch has events of one shard: the one whose first event is the earliest comes first. The metadata of the
schema has the cursor where the stream begins (`from`), that of each batch the one after it (`next`).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.cluster.routing.merged_events import LogReader, Order
from penstock.model.event_log import From, Word, place
from penstock.storage.arrow.columns import COLUMNS, FIXED_COLUMNS, schema

_SHARD = pa.field("shard", pa.int32())


class ArrowWriter:
    def __init__(self, order: Order, *, bodies: bool) -> None:
        self.written = 0
        self._order, self._readers = order, order.readers
        self._columns = COLUMNS if bodies else FIXED_COLUMNS
        self._buffer = io.BytesIO()

    def begin(self) -> bytes:
        fields = [_SHARD, *schema(self._columns, named=True)]
        self._schema = pa.schema(fields, metadata={"from": _cursor_of(self._readers)})
        self._stream = pa.ipc.new_stream(self._buffer, self._schema)
        return self._taken()

    def piece(self, limit: int | None, word: Word) -> bytes:
        """The next record batch, if it is known. One without events keeps the connection alive, and says how far all
        shards have come."""
        reader = self._order.next()
        batch = self._batch(reader, limit) if reader else b""
        return batch + self._write([pa.array([], field.type) for field in self._schema]) if word == "beat" else batch

    def _batch(self, reader: LogReader, limit: int | None) -> bytes:
        batch: Any = reader.events.popleft()
        found = pa.ipc.open_stream(batch.data).read_next_batch()
        rows = found if limit is None else found.slice(0, limit - self.written)
        reader.reached = batch.following if len(rows) == len(found) else _after_last(rows)
        self.written += len(rows)
        shard = pa.array([reader.shard] * len(rows), pa.int32())
        return self._write([shard, *[rows[name] for name in self._columns]])

    def _write(self, columns: Sequence[pa.Array]) -> bytes:
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._stream.write_batch(batch, custom_metadata={"next": _cursor_of(self._readers)})
        return self._taken()

    def end(self) -> bytes:
        self._stream.close()
        return self._taken()

    def _taken(self) -> bytes:
        data = self._buffer.getvalue()
        self._buffer.seek(0)
        self._buffer.truncate()
        return data


def _after_last(rows: pa.RecordBatch) -> bytes:
    offset, part = rows["offset"][-1].as_py(), rows["part"][-1].as_py()
    return place(From(offset, part) if part else From(offset + 1))


def _cursor_of(readers: Sequence[LogReader]) -> bytes:
    return b",".join([b"%d:%b" % (shard, reader.reached) for shard, reader in enumerate(readers)])
