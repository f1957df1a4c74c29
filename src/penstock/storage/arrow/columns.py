"""Batches as Arrow: one row for every letter of every record, with no loop over events.

The records of many batches are joined into one table, each column is one gather from it, and the heap becomes one
binary array whose slots (body, key, headers, digest of each record) are bounded by one cumulative sum. Columns that
are not asked for cost nothing. Whole numbers are signed, because Spark has no others; all of them fit.

A record may have several letters. Which columns a row has depends on its letter and its kind. The facts of a
message are on its L, Q and U; the body, key, headers and digest only on L; a result on S. The Q of a message that was
moved, by an operator or to a dead-letter queue, has its new queue and sequence. `to_queue` and `to_sequence` name
another place: on E where a dead letter went, on Q what it refers to or where it was moved from, and on L and U the
version that it equals.

A queue that is removed is one D, for itself and every message in it: its `sequence` and `created` are null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.storage.arrow.names import Names, bits, primitive
from penstock.storage.letters import columns as letters
from penstock.storage.letters.forms import RECORDS_PER_GROUP, grouped
from penstock.storage.letters.rows import SLOTS, Rows, bounds_of
from penstock.storage.letters.table import Table, table_of
from penstock.storage.log.batch import Header

_TIME = pa.timestamp("ns", tz="UTC")
NAME = pa.dictionary(pa.int32(), pa.utf8())  # The type of a name; its number, where texts are not known, is an int32.
# In the order in which a record batch has them.
TYPES: dict[str, Any] = {
    "offset": pa.int64(),
    "letter": pa.utf8(),
    "kind": pa.int8(),
    "time": _TIME,
    "queue": pa.int32(),
    "queue_name": NAME,
    "sequence": pa.int64(),
    "created": _TIME,
    "visible_at": _TIME,
    "expires_at": _TIME,
    "priority": pa.int64(),
    "receives": pa.int64(),
    **dict.fromkeys(letters.NAMES, NAME),
    "to_queue": pa.int32(),
    "to_sequence": pa.int64(),
    **dict.fromkeys(letters.PARTS, pa.binary()),
}
COLUMNS = tuple(TYPES)
HEAP_COLUMNS = tuple(letters.PARTS)
FIXED_COLUMNS = tuple(name for name in COLUMNS if name not in HEAP_COLUMNS)


@lru_cache
def schema(columns: tuple[str, ...], *, named: bool) -> pa.Schema:
    """The schema of decoded batches. Not `named`: names are their numbers."""
    types = {name: pa.int32() if type_ is NAME and not named else type_ for name, type_ in TYPES.items()}
    return pa.schema([(name, types[name]) for name in columns])


def decode(
    batches: Iterable[tuple[Header, bytes]], columns: Sequence[str] | None = None, names: Names | None = None
) -> pa.RecordBatch:
    """One record batch of all the letters in these batches, in order. `columns`: those wanted; None: all.

    With `names`, the definitions in these batches are added to it, and numbers become texts: null where a number is
    not defined. Without it, the columns hold the numbers, 0 for none.
    """
    wanted = _wanted(columns, names)
    table = table_of(batches, names)
    arrays = [arrow_of(table, name, names) for name in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(wanted, named=names is not None))


def arrow_of(table: Table, name: str, names: Names | None = None) -> pa.Array:
    """One column. Without `names`, the number of a name."""
    if name in letters.PARTS:
        return _part(table, name)
    if name == "queue_name":
        assert names is not None
        return names.queue_names(table.numbers("queue").values)
    values, valid = table.numbers(name)
    if name == "letter":
        # Text of one byte each needs no more than its bytes: as fast as a dictionary, and every reader knows it.
        bounds = pa.py_buffer(np.arange(len(values) + 1, dtype=np.int32))
        return pa.Array.from_buffers(pa.utf8(), len(values), [None, bounds, pa.py_buffer(values)])
    if TYPES[name] is NAME:
        return primitive(pa.int32(), values) if names is None else names.texts(values)
    return primitive(TYPES[name], values, valid)


def _part(table: Table, name: str) -> pa.Array:
    present = table.present(name)
    if present is None:
        return pa.nulls(len(table), pa.binary())
    rows = table.columns.rows
    if name == "body" and table.chosen is None:
        bounds = bounds_of(rows.column("body_bytes") * present)
        if bounds[-1] == len(rows.heap):  # The heap is nothing but bodies: no copy.
            buffers = [bits(present), pa.py_buffer(bounds), pa.py_buffer(rows.heap)]
            return pa.Array.from_buffers(pa.binary(), len(present), buffers)
    return _heap(rows).take(primitive(pa.int64(), table.slots(name), present))


def _heap(rows: Rows) -> pa.Array:
    """The whole heap as one array; no copy."""
    buffers = [None, pa.py_buffer(rows.slot_bounds), pa.py_buffer(rows.heap)]
    return pa.Array.from_buffers(pa.binary(), len(rows.records) * SLOTS, buffers)


def decode_grouped(
    batches: Iterable[tuple[Header, bytes]],
    columns: Sequence[str] | None = None,
    names: Names | None = None,
    *,
    records_min: int = RECORDS_PER_GROUP,
) -> Iterator[pa.RecordBatch]:
    """As `decode`, over a log of any length: batches are decoded together until a group is large enough."""
    for group in grouped(batches, itemgetter(0), records_min):
        yield decode(group, columns, names)


def _wanted(columns: Sequence[str] | None, names: Names | None) -> tuple[str, ...]:
    if columns is None:
        return COLUMNS if names else tuple(name for name in COLUMNS if name != "queue_name")
    unknown = [name for name in columns if name not in TYPES]
    if unknown:
        raise ValueError(f"unknown columns: {', '.join(unknown)}")
    if names is None and "queue_name" in columns:
        raise ValueError("the column queue_name needs names")
    return tuple(columns)
