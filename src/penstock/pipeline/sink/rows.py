"""Converts rows of a Spark job into the Arrow streams that the broker accepts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.dialects.native.spark.staged_rows import TYPES
from penstock.limits import STAGED_CHUNK_BYTES_MAX, STAGED_CHUNK_ROWS_MAX
from penstock.pipeline.sink.options import SinkOptions


def as_messages(rows: pa.RecordBatch, options: SinkOptions) -> pa.RecordBatch:
    """Rows with the columns that the broker accepts. Rows of one queue are next to each other and keep their order,
    so that the broker admits them together."""
    columns: dict[str, pa.Array] = {name: _cast(rows.column(name), TYPES[name]) for name in rows.schema.names}
    given = {name for name in ("queue", "topics") if name in columns}
    default = ("queue", options.queue) if options.queue else ("topics", "\n".join(options.topics))
    if not given:
        columns[default[0]] = pa.repeat(pa.scalar(default[1]), len(rows)).dictionary_encode()
        return pa.RecordBatch.from_pydict(columns)
    if default[1]:
        columns[default[0]] = _filled(columns, *default, len(rows))
    whole = pa.RecordBatch.from_pydict(columns)
    return whole.take(pc.sort_indices(columns["queue"])) if "queue" in columns else whole


def _filled(columns: dict[str, pa.Array], name: str, default: str, count: int) -> pa.Array:
    """The column, with the default in rows that name neither a queue nor topics."""
    nowhere = pa.array([True] * count)
    for each in ("queue", "topics"):
        if each in columns:
            nowhere = pc.and_(nowhere, columns[each].is_null())
    there = columns.get(name, pa.nulls(count, pa.utf8()))
    return pc.if_else(nowhere, pa.scalar(default), there)


def _cast(array: pa.Array, kind: Any) -> pa.Array:
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        array = pc.binary_join(array.cast(pa.list_(pa.utf8())), "\n")  # Topics.
    return array if array.type == kind else array.cast(kind)


def chunks_of(rows: pa.RecordBatch) -> Iterator[bytes]:
    """Arrow streams, each within the limits of a staged chunk."""
    if len(rows) > STAGED_CHUNK_ROWS_MAX or (rows.nbytes > STAGED_CHUNK_BYTES_MAX * 3 // 4 and len(rows) > 1):
        half = len(rows) // 2
        yield from chunks_of(rows.slice(0, half))
        yield from chunks_of(rows.slice(half))
    elif len(rows):
        buffer = io.BytesIO()
        with pa.ipc.new_stream(buffer, rows.schema) as stream:
            stream.write_batch(rows)
        yield buffer.getvalue()
