"""What a log holds, by a reader that knows nothing of Spark, and logs made for one question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from penstock.model.events import Event, NameDefined, QueueCreated
from penstock.model.settings import QueueSettings
from penstock.pipeline.source.columns import COLUMNS
from penstock.storage.arrow.columns import decode
from penstock.storage.arrow.names import Names
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import batches
from tests.support.samples import close_log, commit, logged, open_log

Row = dict[str, Any]
RENAMED = {
    "letter": "state",
    "queue": "queue_number",
    "queue_name": "queue",
    "mime_type": "content_type",
    "to_queue": "to_queue_number",
    "origin_queue": "origin_queue_number",
    "moved_queue": "moved_queue_number",
}


def decoded(data: Path, columns: Sequence[str] = COLUMNS, shard: int = 0) -> list[Row]:
    """Every event as the log has it, under Spark's names, with times in microseconds."""
    names = Names()
    rows = plain(decode(batches(DataDirectory(data), 0), None, names))
    found = [as_spark(row, names) | {"shard": shard} for row in rows]
    return [{name: row[name] for name in columns} for row in found]


def as_spark(row: Row, names: Names | None = None) -> Row:
    """A row with the columns of the log, under Spark's names."""
    changed = {RENAMED.get(name, name): value for name, value in row.items()}
    if names is not None:
        to = row["to_queue"]
        changed["to_queue"] = None if to is None else names.queue_name(to)
    if row.get("headers") is not None:
        kept = msgspec.msgpack.decode(row["headers"], type=dict[bytes, bytes])
        changed["headers"] = [(name.decode(), value) for name, value in kept.items()]
    return changed


def plain(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Rows of plain values; times as whole microseconds, whatever unit they had."""
    values = {}
    for field in table.schema:
        column = table.column(field.name)
        if pa.types.is_timestamp(field.type):
            unit = {"ns": 1000, "us": 1}[field.type.unit]
            values[field.name] = [None if at is None else at // unit for at in column.cast(pa.int64()).to_pylist()]
        else:
            values[field.name] = column.to_pylist()
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def make_log(path: Path, *steps: Sequence[Event], segment_bytes: int = 4096) -> Path:
    """A data directory with a batch for each step, added to what is there."""
    log = open_log(path, segment_bytes)
    list(log.recover().events)
    for events in steps:
        for event in events:
            log.append(event)
        commit(log)
    close_log(log)
    return path


def definitions() -> list[Event]:
    return [
        QueueCreated(1, 1, "orders", QueueSettings()),
        QueueCreated(1, 2, "others", QueueSettings()),
        NameDefined(1, 1, "text/plain"),
    ]


def messages(first: int, count: int, **more: Any) -> list[Event]:
    return [logged(at, b"message %d" % at, content_type=1, **more) for at in range(first, first + count)]
