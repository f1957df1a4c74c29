"""Reads the events of a log as a table.

The driver chooses a range of offsets and divides it; each executor fetches the bytes of its part and decodes them
into Arrow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import cached_property
from math import ceil
from typing import assert_never

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    Filter,
    InputPartition,
)

from penstock.errors import EventsLostError, EventsRemovedError, OptionError
from penstock.pipeline.causes import plainly
from penstock.pipeline.source.columns import needs_names
from penstock.pipeline.source.filters import push
from penstock.pipeline.source.log import Batches, EventLog, Extent, NameTable
from penstock.pipeline.source.offsets import Piece, divided
from penstock.pipeline.source.options import Options, Place, Places, Since
from penstock.pipeline.source.rows import Rows
from penstock.pipeline.source.shards import Needed, ShardLogs, names_here, open_log

logger = logging.getLogger(__name__)

_TASKS_MIN = 4
_TASK_BYTES_MIN = 16 << 20  # Measured: a task costs as much as reading 100,000 to 200,000 events.


class EventRange(InputPartition):
    """The offsets that one task reads, of one or more shards, and the names that it needs to decode them. Tasks that
    read from a broker ask it for names: in a partition, they would be sent once for each task."""

    def __init__(self, pieces: Sequence[Piece], needed: Needed, names: Mapping[int, NameTable]) -> None:
        self.pieces = pieces
        self.needed = needed
        self.names = names  # By shard; none if the task asks for them.


class RangeReader:
    """What both readers share: divide ranges on the driver, read their parts on executors."""

    def __init__(self, options: Options) -> None:
        self._options = options

    @cached_property
    def _store(self) -> ShardLogs:
        # Opened on first use: a reader is pickled and sent to the executors.
        return ShardLogs(self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EventRange):
            return  # Spark passes a partition of its own if there are none.
        options = self._options
        names = partition.names or dict(enumerate(names_here(options, partition.needed)))
        for shard, start, end in partition.pieces:
            rows = Rows(options.columns, options.queues, options.states, names[shard], shard)
            with closing(open_log(options, shard, len(partition.needed.logs))) as log:
                yield from rows.of(self._batches(log, start, end), start, end)

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

    def _offsets(self, option: str, places: Places, extents: Sequence[Extent]) -> list[int]:
        """The offset of each shard that an option names. Raises `OptionError` if it does not fit the shards."""
        shards = range(len(extents))
        if places == 0 and len(extents) > 1:
            places = "earliest"  # The beginning of every shard, wherever its own offsets begin.
        if isinstance(places, int) and len(extents) > 1:
            raise OptionError(
                f"{option} is one offset, but there are {len(extents)} shards with offsets of their own:"
                f' set it to the form {{"0": {places}, "1": {places}}}, or to a time'
            )
        if isinstance(places, dict) and places.keys() != set(shards):
            raise OptionError(f"{option} must name each shard once: they are numbered from 0 to {len(extents) - 1}")
        each = [places[shard] if isinstance(places, dict) else places for shard in shards]
        return [self._offset(place, extent) for place, extent in zip(each, extents, strict=True)]

    def _offset(self, place: Place, extent: Extent) -> int:
        match place:
            case "earliest":
                return extent.earliest
            case "latest":
                return extent.end
            case Since(time):
                log = self._store.logs[extent.shard]
                return min(log.offset_at(time), extent.end)  # The log may have grown meanwhile.
            case int():
                return place
            case _:
                assert_never(place)

    def _divide(self, starts: Sequence[int], ends: Sequence[int], extents: Sequence[Extent]) -> list[EventRange]:
        """Divide ranges by the bytes that a task should read, into a few parts even if there is less."""
        pieces = [
            Piece(extent.shard, start, end)
            for extent, start, end in zip(extents, starts, ends, strict=True)
            if start < end
        ]
        if not pieces:
            return []
        sizes = [max(1, extents[piece.shard].bytes_of(piece.start, piece.end)) for piece in pieces]
        size = sum(sizes)
        count = max(1, ceil(size / self._options.partition_bytes), min(_TASKS_MIN, size // _TASK_BYTES_MIN))
        names = self._names(extents)
        needed = Needed(tuple(extent.id for extent in extents), tuple(log.named_to for log in self._store.logs))
        return [
            EventRange(part, needed, {piece.shard: names[piece.shard] for piece in part if names})
            for part in divided(pieces, sizes, count)
        ]

    def _names(self, extents: Sequence[Extent]) -> list[NameTable]:
        """The names that are sent with each partition, by shard."""
        wanted = needs_names(self._options.columns)
        if not wanted and not self._options.queues:
            return [NameTable({}, {})] * len(extents)
        if self._options.url is not None:
            return []
        names = self._store.names()
        return names if wanted else [NameTable({}, each.queues) for each in names]

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
        f"is past the end of {extent.name} ({extent.end}): this is another log, or it was restored from an older"
        " backup. Start with a new checkpoint, or restore the log that the checkpoint was made with"
    )


class EventReader(RangeReader, DataSourceReader):
    """Reads a range of offsets once."""

    @plainly
    def partitions(self) -> list[EventRange]:
        options = self._options
        with closing(self._store) as store:
            extents = store.extents()
            starts = self._offsets("startingOffset", options.start, extents)
            ends = self._offsets("endingOffset", options.end, extents)
            for end, extent in zip(ends, extents, strict=True):
                if end > extent.end:
                    raise EventsLostError(f"endingOffset {end} is past the end of {extent.name} ({extent.end})")
            firsts = [self._check(start, extent) for start, extent in zip(starts, extents, strict=True)]
            lows = [max(first, options.low) for first in firsts]
            highs = [end if options.high is None else min(end, options.high) for end in ends]
            return self._divide(lows, highs, extents)


class FilteredEventReader(EventReader):
    """The same, for a session in which Spark passes on the filters of a query."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        self._options, left = push(self._options, filters)
        return left
