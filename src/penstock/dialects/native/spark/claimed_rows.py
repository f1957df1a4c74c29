"""Claimed messages for a stream processor, in Arrow. Only this needs pyarrow, so it is imported on first use."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from penstock.ids import MessageIds
from penstock.model.answers import Delivery

_TIME = pa.timestamp("ns", tz="UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.utf8()),
        ("sequence", pa.int64()),
        ("created", _TIME),
        ("receives", pa.int64()),
        ("priority", pa.int64()),
        ("content_type", pa.utf8()),
        ("sender", pa.utf8()),
        ("object", pa.utf8()),
        ("topics", pa.utf8()),  # Joined by line feeds.
        ("body", pa.binary()),
        ("key", pa.binary()),
        ("headers", pa.binary()),
    ]
)


def encoded(deliveries: list[Delivery], ids: MessageIds) -> bytes:
    """The deliveries as an Arrow stream."""
    make = ids.make
    columns: list[list[Any]] = [
        [make(each.queue, each.sequence).decode() for each in deliveries],
        [each.sequence for each in deliveries],
        [each.created for each in deliveries],
        [each.receives for each in deliveries],
        [each.priority for each in deliveries],
        [each.content_type or None for each in deliveries],
        [each.sender or None for each in deliveries],
        [each.object or None for each in deliveries],
        [each.topics or None for each in deliveries],
        [each.body for each in deliveries],
        [each.key or None for each in deliveries],
        [each.headers or None for each in deliveries],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, SCHEMA) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    return buffer.getvalue()
