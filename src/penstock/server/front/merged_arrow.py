"""The events of several shards as one Arrow stream. Only this format needs pyarrow, so it is imported on first use.

Each record batch has events of one shard: the one whose first event is the earliest comes first. The metadata of the
schema has the cursor where the stream begins (`from`), that of each batch the one after it (`next`).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.cluster.links.flows import Pieces
from penstock.server.front.merged_events import LogReader, Order, cursor_of
from penstock.storage.arrow.columns import COLUMNS, FIXED_COLUMNS, schema

_SHARD = pa.field("shard", pa.int32())


class _Batch(NamedTuple):
    """`rows` have one more column, `part`."""

    time: int
    shard: int
    following: bytes  # Where a reader that has handled it continues, in its shard.
    rows: pa.RecordBatch


class ArrowReader(LogReader):
    """Reads the record batches of one shard, in frames as `ArrowFrames` writes them."""

    passed = -1

    def __init__(self, shard: int, pieces: Pieces) -> None:
        super().__init__(shard, pieces)
        self._kept = b""  # The beginning of a frame.

    def take(self, piece: bytes) -> None:
        data, at = self._kept + piece, 0
        while (end := data.find(b"\n", at)) >= 0:
            size, _, about = data[at:end].partition(b" ")
            start, following = end + 1, end + 1 + int(size)
            if following > len(data):
                break
            self._take_frame(about, data[start:following])
            at = following
        self._kept = data[at:]

    def _take_frame(self, about: bytes, stream: bytes) -> None:
        position, *mark = about.split(b" ")
        if mark:
            word, passed = mark
            self.mark(position, word, int(passed))
            return
        rows = pa.ipc.open_stream(stream).read_next_batch()
        self.events.append(_Batch(rows["time"][0].value, self.shard, position, rows))
        self.passed = rows["time"][-1].value


class ArrowWriter:
    def __init__(self, order: Order, *, bodies: bool) -> None:
        self.written = 0
        self._order, self._readers = order, order.readers
        self._columns = COLUMNS if bodies else FIXED_COLUMNS
        self._buffer = io.BytesIO()

    def begin(self) -> bytes:
        for reader in self._readers:
            reader.check()
        fields = [_SHARD, *schema(self._columns, named=True)]
        self._schema = pa.schema(fields, metadata={"from": cursor_of(self._readers)})
        self._stream = pa.ipc.new_stream(self._buffer, self._schema)
        return self._taken()

    def events(self, limit: int | None) -> bytes:
        """The next record batch, if it is known."""
        reader = self._order.next()
        if reader is None:
            return b""
        batch: _Batch = reader.events.popleft()
        rows = batch.rows if limit is None else batch.rows.slice(0, limit - self.written)
        reader.reached = batch.following if len(rows) == len(batch.rows) else _after_last(rows)
        self.written += len(rows)
        shard = pa.array([batch.shard] * len(rows), pa.int32())
        return self._write([shard, *[rows[name] for name in self._columns]])

    def progress(self) -> bytes:
        return b""

    def beat(self) -> bytes:
        """A batch without events keeps the connection alive, and says how far all shards have come."""
        return self._write([pa.array([], field.type) for field in self._schema])

    def _write(self, columns: Sequence[pa.Array]) -> bytes:
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._stream.write_batch(batch, custom_metadata={"next": cursor_of(self._readers)})
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
    return b"%d.%d" % (offset, part) if part else b"%d" % (offset + 1)
