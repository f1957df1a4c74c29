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

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import TypeVar

import pyarrow as pa

from penstock.storage.arrow.builders import BUILT, NAME
from penstock.storage.arrow.names import Names
from penstock.storage.arrow.rows import Rows
from penstock.storage.log.batch import Header

RECORDS_PER_GROUP = 8_192  # Measured: smaller groups pay for the calls, larger ones for touching fresh memory.
BYTES_PER_GROUP = 64 << 20  # Bodies end a group earlier; Arrow's offsets have room for 2 GiB.

TYPES = {name: column.type for name, column in BUILT.items()}
COLUMNS = tuple(TYPES)
HEAP_COLUMNS = ("body", "result", "key", "headers", "digest")
FIXED_COLUMNS = tuple(name for name in COLUMNS if name not in HEAP_COLUMNS)

_Batch = TypeVar("_Batch")


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
    rows = Rows(list(batches), names)
    arrays = [BUILT[name].build(rows) for name in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=schema(wanted, named=names is not None))


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


def grouped(
    batches: Iterable[_Batch], header_of: Callable[[_Batch], Header], records_min: int = RECORDS_PER_GROUP
) -> Iterator[list[_Batch]]:
    """Batches in groups that are worth decoding together."""
    group: list[_Batch] = []
    records = size = 0
    for batch in batches:
        header = header_of(batch)
        group.append(batch)
        records += header.records
        size += header.heap_bytes
        if records >= records_min or size >= BYTES_PER_GROUP:
            yield group
            group = []
            records = size = 0
    if group:
        yield group


def _wanted(columns: Sequence[str] | None, names: Names | None) -> tuple[str, ...]:
    if columns is None:
        return COLUMNS if names else tuple(name for name in COLUMNS if name != "queue_name")
    unknown = [name for name in columns if name not in TYPES]
    if unknown:
        raise ValueError(f"unknown columns: {', '.join(unknown)}")
    if names is None and "queue_name" in columns:
        raise ValueError("the column queue_name needs names")
    return tuple(columns)
