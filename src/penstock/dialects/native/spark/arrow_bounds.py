"""Bounds on an Arrow stream of a client, checked before it is decoded: a few kilobytes can stand for gigabytes.

Compressed buffers are decompressed while a stream is read, and a value in a dictionary may be used by every row.
"""

from __future__ import annotations

from struct import Struct

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ProtocolError
from penstock.limits import STAGED_CHUNK_ROWS_MAX, STAGED_DECODED_BYTES_MAX

# Fields of the tables in the metadata of a message: Message.fbs of the Arrow format.
_HEADER, _DICTIONARY_DATA, _COMPRESSION = 2, 1, 3
_offset, _vtable_offset, _field = Struct("<I").unpack_from, Struct("<i").unpack_from, Struct("<H").unpack_from


def check_stream(data: bytes) -> None:
    """Raises `ProtocolError` for a stream that is compressed."""
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(data)):
        if message.type in ("record batch", "dictionary") and _is_compressed(message):
            raise ProtocolError("the Arrow stream is compressed; send it without compression")


def check_table(table: pa.Table) -> None:
    """Raises `ProtocolError` for more rows, or larger columns, than a chunk may have."""
    if not 1 <= table.num_rows <= STAGED_CHUNK_ROWS_MAX:
        raise ProtocolError(f"a chunk has 1 to {STAGED_CHUNK_ROWS_MAX} rows, got {table.num_rows}")
    for name, column in zip(table.column_names, table.columns, strict=True):
        for array in column.chunks:
            _check_array(name, array)


def _check_array(name: str, array: pa.Array) -> None:
    kind = array.type
    if pa.types.is_dictionary(kind) and _is_plain(kind.value_type):
        size = pc.sum(_lengths(array.dictionary).take(array.indices)).as_py() or 0
        if size > STAGED_DECODED_BYTES_MAX:
            raise ProtocolError(f"the column {name} has at most {STAGED_DECODED_BYTES_MAX} bytes, got {size}")
    elif not (_is_plain(kind) or (pa.types.is_map(kind) and _is_plain(kind.key_type) and _is_plain(kind.item_type))):
        raise ProtocolError(f"the column {name} has the type {kind}, which cannot be read here")


def _is_plain(kind: pa.DataType) -> bool:
    """Whether the values are in the array itself, each once."""
    kinds = pa.types
    is_text = kinds.is_string(kind) or kinds.is_large_string(kind)
    is_binary = kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind)
    return bool(is_text or is_binary or kinds.is_null(kind) or kinds.is_primitive(kind))


def _lengths(values: pa.Array) -> pa.Array:
    if pa.types.is_primitive(values.type) or pa.types.is_null(values.type):
        return pa.array([0] * len(values), pa.int64())
    return pc.binary_length(values).cast(pa.int64())


def _is_compressed(message: pa.ipc.Message) -> bool:
    metadata = bytes(message.metadata)
    batch = _table_at(metadata, _offset(metadata)[0], _HEADER)
    if message.type == "dictionary":
        batch = _table_at(metadata, batch, _DICTIONARY_DATA)
    return _position(metadata, batch, _COMPRESSION) is not None


def _table_at(metadata: bytes, table: int, field: int) -> int:
    """Where the table begins that a field of another table refers to."""
    at = _position(metadata, table, field)
    if at is None:
        raise ProtocolError("the metadata of an Arrow message is incomplete")
    return at + int(_offset(metadata, at)[0])


def _position(metadata: bytes, table: int, field: int) -> int | None:
    """Where a field of a table is; None if it is absent."""
    vtable = table - _vtable_offset(metadata, table)[0]
    place = 4 + 2 * field
    distance = _field(metadata, vtable + place)[0] if place < _field(metadata, vtable)[0] else 0
    return table + int(distance) if distance else None
