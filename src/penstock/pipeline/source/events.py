"""Reads the events of a log as a table.

The driver chooses a range of offsets and divides it; each executor fetches the bytes of its part and decodes them
into Arrow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import assert_never

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    Filter,
    InputPartition,
)

from penstock.errors import EventsLostError, EventsRemovedError
from penstock.pipeline.causes import plainly
from penstock.pipeline.source.broker import BrokerLog
from penstock.pipeline.source.columns import needs_names
from penstock.pipeline.source.files import FileLog
from penstock.pipeline.source.filters import push
from penstock.pipeline.source.log import Batches, EventLog, Extent, NameTable
from penstock.pipeline.source.options import Options, Place, Since
from penstock.pipeline.source.rows import Rows

logger = logging.getLogger(__name__)

_TASKS_MIN = 4
_TASK_BYTES_MIN = 16 << 20  # Measured: a task costs as much as reading 100,000 to 200,000 events.


def open_log(options: Options) -> EventLog:
    """The log that the options name."""
    if options.path is not None:
        return FileLog(Path(options.path))
    assert options.url is not None
    return BrokerLog(options.url, options.token, options.trust)


class EventRange(InputPartition):
    """The offsets that one task reads, and the names that it needs to decode them."""

    def __init__(self, start: int, end: int, names: NameTable) -> None:
        self.start = start
        self.end = end
        self.names = names


class RangeReader:
    """What both readers share: divide a range on the driver, read its parts on executors."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @cached_property
    def _log(self) -> EventLog:
        # Opened on first use: a reader is pickled and sent to the executors.
        return open_log(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EventRange):
            return  # Spark passes a partition of its own if there are none.
        options = self._options
        rows = Rows(options.columns, options.queues, options.states, partition.names)
        with closing(self._log) as log:
            yield from rows.of(self._batches(log, partition.start, partition.end), partition.start, partition.end)

    def _batches(self, log: EventLog, start: int, end: int) -> Batches:
        """The batches of a range, without those that retention removes meanwhile."""
        while start < end:
            try:
                for header, payload in log.batches(start, end):
                    yield header, payload
                    start = header.end.offset
                return
            except EventsRemovedError as error:
                start = self._skip(start, error.earliest)

    def _offset(self, place: Place, extent: Extent) -> int:
        match place:
            case "earliest":
                return extent.earliest
            case "latest":
                return extent.end
            case Since(time):
                return min(self._log.offset_at(time), extent.end)  # The log may have grown meanwhile.
            case int():
                return place
            case _:
                assert_never(place)

    def _divide(self, start: int, end: int, extent: Extent) -> list[EventRange]:
        """Divide a range by the bytes that a task should read, into a few parts even if there is less."""
        if start >= end:
            return []
        size = extent.bytes * (end - start) // max(extent.end - extent.earliest, 1)
        count = max(1, ceil(size / self._options.partition_bytes), min(_TASKS_MIN, size // _TASK_BYTES_MIN))
        count = min(count, end - start)
        bounds = [start + (end - start) * part // count for part in range(count + 1)]
        names = self._names()
        return [EventRange(first, last, names) for first, last in pairwise(bounds)]

    def _names(self) -> NameTable:
        wanted = needs_names(self._options.columns)
        if not wanted and not self._options.queues:
            return NameTable({}, {})
        names = self._log.names()
        return names if wanted else NameTable({}, names.queues)

    def _skip(self, start: int, earliest: int) -> int:
        """Continue after events that retention has removed, if the options allow it."""
        loss = f"the events from offset {start} to {earliest - 1} are past retention: the log begins at {earliest}"
        if self._options.fail_on_data_loss:
            raise EventsLostError(f"{loss}. With failOnDataLoss=false the query continues from there.")
        logger.warning("%s; the query continues from there", loss)
        return max(start, earliest)

    def _check(self, start: int, extent: Extent) -> int:
        """The first offset to read, at or after `start`. Raises `EventsLostError`."""
        if start > extent.end:
            raise EventsLostError(f"offset {start} {past_end(extent)}")
        return start if start >= extent.earliest else self._skip(start, extent.earliest)


def past_end(extent: Extent) -> str:
    """Why an offset cannot be read that is past the end of the log."""
    return (
        f"is past the end of the log ({extent.end}): this is another log, or it was restored from an older backup."
        " Start with a new checkpoint, or restore the log that the checkpoint was made with"
    )


class EventReader(RangeReader, DataSourceReader):
    """Reads a range of offsets once."""

    @plainly
    def partitions(self) -> list[EventRange]:
        with closing(self._log) as log:
            extent = log.extent()
            start = self._check(self._offset(self._options.start, extent), extent)
            end = self._offset(self._options.end, extent)
            if end > extent.end:
                raise EventsLostError(f"endingOffset {end} is past the end of the log ({extent.end})")
            high = end if self._options.high is None else min(end, self._options.high)
            return self._divide(max(start, self._options.low), high, extent)


class FilteredEventReader(EventReader):
    """The same, for a session in which Spark passes on the filters of a query."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._options, left = push(self._options, filters)
        return left
