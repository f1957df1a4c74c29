"""The events of a data directory as JSON lines."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from penstock.engine.engine import Engine
from penstock.engine.history import NoHistory
from penstock.storage.arrow.columns import decode_grouped
from penstock.storage.arrow.names import Names
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import batches, newest_snapshot
from penstock.storage.log.batch import Header
from penstock.storage.log.names import names_defined

_TEXT_COLUMNS = ("body", "result", "key", "headers")


def event_lines(data: DataDirectory, start: int) -> Iterator[str]:
    data.read_identity()
    names, known_to = _names(data)
    # Reading begins at the snapshot, because names may be defined between it and the first event wanted.
    for group in decode_grouped(_report_gaps(batches(data, min(start, known_to))), None, names):
        first = int(np.searchsorted(group.column("offset").to_numpy(), start))
        for row in _plain(group.slice(first)).to_pylist():
            yield msgspec.json.encode(_printable(row)).decode() + "\n"


def _names(data: DataDirectory) -> tuple[Names, int]:
    """The names in the newest whole snapshot, and its offset."""
    snapshot = newest_snapshot(data)
    if snapshot is None:
        return Names(), 0
    engine = Engine(NoHistory())
    facts, sections = snapshot
    engine.restore(sections)
    queues = {queue.number: queue.name for queue in engine.queues.values()}
    texts: dict[int, str] = {}
    if engine.names.last > len(engine.names):  # Some were forgotten: the log still defines them.
        for header, payload in batches(data, 0):
            texts |= names_defined(header, payload)
    return Names(texts | engine.names.texts, queues), facts.offset


def _report_gaps(found: Iterator[tuple[Header, bytes]]) -> Iterator[tuple[Header, bytes]]:
    end = None
    for header, payload in found:
        if end is not None and header.base_offset != end:
            gap = (
                f"penstock: offsets {end} to {header.base_offset - 1} are missing: removed or damaged"
                " (check with penstock log verify)"
            )
            print(gap, file=sys.stderr)
        end = header.end.offset
        yield header, payload


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch with times as text, because Python's times have no nanoseconds."""
    for at, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            numbers = batch.column(at).cast(pa.int64())
            texts = np.datetime_as_string(numbers.fill_null(0).to_numpy().view("M8[ns]"), timezone="UTC")
            batch = batch.set_column(at, field.name, pa.array(texts, mask=numbers.is_null().to_numpy(False)))
    return batch


def _printable(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of an event for JSON. Bytes that are not UTF-8 are in base64, in a field with the suffix
    `_base64`."""
    event = {name: value for name, value in row.items() if value is not None}
    if "digest" in event:
        event["digest"] = event["digest"].hex()
    for name in _TEXT_COLUMNS:
        if name in event:
            data = event.pop(name)
            try:
                event[name] = data.decode()
            except UnicodeDecodeError:
                event[f"{name}_base64"] = base64.b64encode(data).decode()
    return event
