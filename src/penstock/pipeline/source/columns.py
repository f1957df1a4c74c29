"""The columns of an event in Spark and in the lake: the log's own, under the names that all tables share.

`queue` is the name of the queue, `queue_number` its number; headers are a map. `storage/arrow/columns.py` decodes the
log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa

from penstock.model.kept_headers import decode_headers
from penstock.storage.arrow.columns import TYPES
from penstock.storage.arrow.names import Names

TIME = pa.timestamp("us", tz="UTC")
HEADERS = pa.map_(pa.utf8(), pa.binary())

# Each column with the column of the log that it is made from, in the order of the schema.
_MADE_FROM = {
    "shard": "offset",
    "offset": "offset",
    "state": "letter",
    "kind": "kind",
    "time": "time",
    "queue": "queue_name",
    "queue_number": "queue",
    "sequence": "sequence",
    "created": "created",
    "visible_at": "visible_at",
    "expires_at": "expires_at",
    "priority": "priority",
    "receives": "receives",
    "consumer": "consumer",
    "content_type": "content_type",
    "sender": "sender",
    "object": "object",
    "topics": "topics",
    "to_queue": "to_queue",
    "to_queue_number": "to_queue",
    "to_sequence": "to_sequence",
    "body": "body",
    "result": "result",
    "key": "key",
    "headers": "headers",
    "digest": "digest",
}
COLUMNS = tuple(_MADE_FROM)
# Former names of columns, for the error message.
RENAMED = {"letter": "state", "queue_name": "queue", "mime_type": "content_type", "mimeType": "content_type"}


@lru_cache
def arrow_schema(columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([(name, _type(name)) for name in columns])


def made_from(columns: Iterable[str]) -> tuple[str, ...]:
    """The columns of the log that these are made from."""
    return tuple(dict.fromkeys(_MADE_FROM[name] for name in columns))


def needs_names(columns: Iterable[str]) -> bool:
    """Whether these columns hold names, which the log stores as numbers."""
    return any(name == "to_queue" or pa.types.is_dictionary(TYPES[_MADE_FROM[name]]) for name in columns)


def convert(rows: pa.RecordBatch, columns: tuple[str, ...], names: Names, shard: int = 0) -> pa.RecordBatch:
    """Make these columns from decoded columns of the log of a shard."""
    schema = arrow_schema(columns)
    arrays = [_column(rows, field, names, shard) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def as_map(headers: pa.Array) -> pa.Array:
    """Decode stored headers into maps. Bytes that are not a map of headers get the empty name."""
    if headers.null_count == len(headers):
        return pa.nulls(len(headers), HEADERS)
    return pa.array([None if data is None else _pairs(data) for data in headers.to_pylist()], HEADERS)


def unknown_columns(columns: Iterable[str], known: Collection[str]) -> str:
    """The error message for a list of columns, empty if all of them are known."""
    unknown = [name for name in columns if name not in known]
    if not unknown:
        return ""
    renamed = "".join(f"{name} is now {RENAMED[name]}, " for name in unknown if RENAMED.get(name, "") in known)
    return f"unknown column {', '.join(unknown)}; {renamed}the columns are {', '.join(known)}"


def _type(name: str) -> Any:
    if name == "headers":
        return HEADERS
    if name == "to_queue":
        return pa.utf8()
    if name == "shard":
        return pa.int32()
    kind = TYPES[_MADE_FROM[name]]
    if pa.types.is_dictionary(kind):
        return kind.value_type
    return TIME if pa.types.is_timestamp(kind) else kind


def _column(rows: pa.RecordBatch, field: pa.Field, names: Names, shard: int) -> pa.Array:
    if field.name == "shard":
        return pa.repeat(pa.scalar(shard, field.type), len(rows))
    array = rows.column(_MADE_FROM[field.name])
    if field.name == "headers":
        return as_map(array)
    if field.name == "to_queue":
        array = names.queue_names(array.fill_null(0).to_numpy(zero_copy_only=False))
    return array if array.type == field.type else array.cast(field.type, safe=False)


def _pairs(data: bytes) -> list[tuple[str, bytes]]:
    try:
        return [(name.decode(errors="backslashreplace"), value) for name, value in decode_headers(data).items()]
    except msgspec.DecodeError:
        return [("", data)]
