"""`format("penstock")` for Spark: the events of a log as a table, in batches and as a stream. `sink.py` writes.

The driver decides on offsets and divides them; the executors fetch the bytes of their ranges themselves and decode
them into Arrow. An offset of a stream is `{"<shard>": offset}`: the first one not read yet.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any, assert_never

import pyarrow as pa
from msgspec import structs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.errors import EventsLostError, EventsRemovedError, OptionError
from penstock.model.kinds import LETTERS
from penstock.pipeline.broker import BrokerLog
from penstock.pipeline.causes import plainly
from penstock.pipeline.columns import COLUMNS, needs_names, unknown_columns
from penstock.pipeline.files import FileLog
from penstock.pipeline.filters import is_pushing, push
from penstock.pipeline.log import Batches, EventLog, Extent, NameTable
from penstock.pipeline.options import (
    QUEUE_COLUMNS,
    Options,
    Place,
    Since,
    parse_options,
    parse_sink_options,
)
from penstock.pipeline.queue import QueueStreamReader, queue_schema
from penstock.pipeline.rows import Rows, spark_schema
from penstock.pipeline.sink import BatchWriter, StreamWriter, checked

logger = logging.getLogger(__name__)

_LETTERS_MAX = max(map(len, LETTERS.values()))  # Of one record.
_TASKS_MIN = 4
_TASK_BYTES_MIN = 16 << 20  # Measured: a task costs as much as reading 100,000 to 200,000 events.


class PenstockSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "penstock"

    @plainly
    def schema(self) -> StructType:
        return _schema(parse_options(self.options))

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        options = _asked(self.options, schema)
        if options.read == "queue":
            raise OptionError(
                "read=queue is for streams: it takes messages, and finishes them when their batch is done. "
                "read=events shows what is in a queue and leaves it there"
            )
        return FilteredEventReader(options) if is_pushing() else EventReader(options)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = _asked(self.options, schema)
        return QueueStreamReader(options) if options.read == "queue" else EventStreamReader(options)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return checked(BatchWriter(parse_sink_options(self.options), schema, overwrite))

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return checked(StreamWriter(parse_sink_options(self.options), schema, overwrite))


def _schema(options: Options) -> StructType:
    return queue_schema(options.columns) if options.read == "queue" else spark_schema(options.columns)


def _asked(given: Any, schema: StructType) -> Options:
    """The options, with the columns of the schema: the user may have given one."""
    options = parse_options(given)
    columns = tuple(schema.fieldNames())
    known = QUEUE_COLUMNS if options.read == "queue" else COLUMNS
    wrong = unknown_columns(columns, known)
    if wrong:
        raise OptionError(wrong)
    options = structs.replace(options, columns=columns)
    for field, ours in zip(schema, _schema(options), strict=True):
        if field.dataType != ours.dataType:
            raise OptionError(
                f"{field.name} is of type {ours.dataType.simpleString()}, not {field.dataType.simpleString()}"
            )
    return options


def open_log(options: Options) -> EventLog:
    """The log that the options name."""
    if options.path is not None:
        return FileLog(Path(options.path))
    assert options.url is not None
    return BrokerLog(options.url, options.token)


class EventRange(InputPartition):
    """The offsets that one task reads, and what the numbers in them stand for."""

    def __init__(self, start: int, end: int, names: NameTable) -> None:
        self.start = start
        self.end = end
        self.names = names


class _Reader:
    """What both readers do: divide a range on the driver, read its parts on executors."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @cached_property
    def _log(self) -> EventLog:
        # Opened when it is needed, and not before: a reader is sent to the executors.
        return open_log(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EventRange):
            return  # Spark makes up a partition where there is none.
        options = self._options
        rows = Rows(options.columns, options.queues, options.states, partition.names)
        with closing(self._log) as log:
            yield from rows.of(self._batches(log, partition.start, partition.end), partition.start, partition.end)

    def _batches(self, log: EventLog, start: int, end: int) -> Batches:
        """What is left of a range: retention may be at work while it is read."""
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
        """Ranges of about as many bytes as a task should read, and a few even where there is less."""
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
        """Go on behind events that retention has removed, if that is allowed."""
        told = f"the events from offset {start} to {earliest - 1} are past retention: the log begins at {earliest}"
        if self._options.fail_on_data_loss:
            raise EventsLostError(f"{told}. With failOnDataLoss=false the query goes on from there.")
        logger.warning("%s; the query goes on from there", told)
        return max(start, earliest)

    def _check(self, start: int, extent: Extent) -> int:
        """Where to begin, of what there is."""
        if start > extent.end:
            raise EventsLostError(f"offset {start} is behind the end of the log, {extent.end}: is it another log?")
        return start if start >= extent.earliest else self._skip(start, extent.earliest)


class EventReader(_Reader, DataSourceReader):
    """One read of a range of offsets."""

    @plainly
    def partitions(self) -> list[EventRange]:
        with closing(self._log) as log:
            extent = log.extent()
            start = self._check(self._offset(self._options.start, extent), extent)
            end = self._offset(self._options.end, extent)
            if end > extent.end:
                raise EventsLostError(f"endingOffset {end} is behind the end of the log, {extent.end}")
            high = end if self._options.high is None else min(end, self._options.high)
            return self._divide(max(start, self._options.low), high, extent)


class FilteredEventReader(EventReader):
    """The same, for a session that hands on the filters of a query."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._options, left = push(self._options, filters)
        return left


class EventStreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of offsets. Spark's checkpoint keeps them: a range that is asked for again gives the same events."""

    def __init__(self, options: Options) -> None:
        if options.end != "latest":
            raise OptionError("endingOffset is for batch reads: a stream has no end")
        super().__init__(options)
        self._target: int | None = None  # Where a run with AvailableNow ends.
        self._waiting_since: float | None = None  # For more events, since there were the first ones.

    @plainly
    def initialOffset(self) -> dict[str, int]:
        extent = self._log.extent()
        return {str(extent.shard): self._check(self._offset(self._options.start, extent), extent)}

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.events_max is not None:
            return ReadMaxRows(self._options.events_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._log.extent().end

    @plainly
    def reportLatestOffset(self) -> dict[str, int]:
        extent = self._log.extent()
        return {str(extent.shard): extent.end}

    @plainly
    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        extent = self._log.extent()
        first = _offset_of(start, extent)
        begin = self._check(first, extent)
        end = extent.end if self._target is None else min(extent.end, self._target)
        if self._waits(end - begin):
            return {str(extent.shard): first}
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(begin, end)
        return {str(extent.shard): max(first, end)}

    def _waits(self, records: int) -> bool:
        """Are these too few for a batch, and was it not long ago that the first of them came?"""
        enough = self._options.events_min is None or records >= self._options.events_min or self._target is not None
        if enough or not records:
            self._waiting_since = None
            return False
        now = time.monotonic()
        self._waiting_since = since = self._waiting_since or now
        if now - since < self._options.delay_seconds:
            return True
        self._waiting_since = None
        return False

    def _limited(self, begin: int, end: int) -> int:
        """Both limits hold, whichever of them Spark was told of; but one record is always read."""
        if self._options.events_max is not None:
            end = min(end, begin + max(1, self._options.events_max // _LETTERS_MAX))
        if self._options.bytes_max is None or begin >= end:
            return end
        try:
            return min(end, self._log.offset_within(begin, self._options.bytes_max))
        except EventsRemovedError as error:
            return self._limited(self._skip(begin, error.earliest), end)

    @plainly
    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[EventRange]:
        extent = self._log.extent()
        first, last = _offset_of(start, extent), _offset_of(end, extent)
        if first >= last:
            return []
        if last > extent.end:
            raise EventsLostError(f"offset {last} of the checkpoint is behind the end of the log, {extent.end}")
        return self._divide(self._check(first, extent), last, extent)

    def stop(self) -> None:
        if "_log" in self.__dict__:
            self._log.close()


def _offset_of(offsets: dict[str, int], extent: Extent) -> int:
    try:
        return offsets[str(extent.shard)]
    except KeyError:
        raise EventsLostError(f"the checkpoint is of shard {', '.join(offsets)}, the log of {extent.shard}") from None
