"""Decodes batches of the log into Arrow for Spark. This runs on the executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.pipeline.source.columns import arrow_schema, convert, made_from
from penstock.pipeline.source.log import NameTable
from penstock.storage.arrow.columns import decode_grouped
from penstock.storage.arrow.names import Names
from penstock.storage.log.batch import RECORD_BYTES, Header, extent_bounds, records_of

Batches = Iterable[tuple[Header, bytes]]

_RECORDS_PER_GROUP = 32_768  # Measured: smaller groups cost more to pass to Spark than to decode.


def spark_schema(columns: tuple[str, ...]) -> StructType:
    return from_arrow_schema(arrow_schema(columns))


class Rows:
    """Decodes these columns of the events of these queues and states."""

    def __init__(
        self,
        columns: tuple[str, ...],
        queues: frozenset[str],
        states: frozenset[str],
        names: NameTable,
        shard: int = 0,
    ) -> None:
        self._columns = columns
        self._shard = shard
        self._names = names
        numbers = [number for number, name in names.queues.items() if name in queues]
        self._queues = pa.array(numbers, pa.int32()) if queues else None
        self._states = pa.array(sorted(states), pa.utf8()) if states else None
        extra = ("queue_number",) * bool(queues) + ("state",) * bool(states)
        self._decoded = made_from(columns + extra)

    def of(self, batches: Batches, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The rows of the offsets from `start` up to, but not including, `end`."""
        names = Names(queues=self._names.queues)
        for number, text in self._names.texts.items():
            names.define(number, text)
        wanted = trimmed(batches, start, end)
        for batch in decode_grouped(wanted, self._decoded, names, records_min=_RECORDS_PER_GROUP):
            rows = self._chosen(batch)
            if rows.num_rows:
                yield convert(rows, self._columns, names, self._shard)

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._queues is not None:
            batch = batch.filter(pc.is_in(batch.column("queue"), self._queues))
        if self._states is not None:
            batch = batch.filter(pc.is_in(batch.column("letter"), self._states))
        return batch


def trimmed(batches: Batches, start: int, end: int) -> Iterator[tuple[Header, bytes]]:
    """Only the records from `start` up to, but not including, `end`."""
    for header, payload in batches:
        after = header.end.offset
        if start <= header.base_offset and after <= end:
            yield header, payload
        elif start < after and header.base_offset < end:
            yield _cut(header, payload, max(start - header.base_offset, 0), min(end, after) - header.base_offset)


def _cut(header: Header, payload: bytes, first: int, last: int) -> tuple[Header, bytes]:
    """The records from `first` up to `last` of a batch, with their bytes from the heap."""
    bounds = extent_bounds(records_of(header, payload))
    heap = payload[bounds[first] : bounds[last]]
    table = payload[header.heap_bytes + first * RECORD_BYTES : header.heap_bytes + last * RECORD_BYTES]
    cut = header._replace(
        base_offset=header.base_offset + first, records=last - first, heap_bytes=len(heap), payload_crc=0
    )
    return cut, heap + table
