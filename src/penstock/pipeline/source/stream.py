"""Reads the events of a log as a stream. Its offset is `{"<shard>": offset}`: the first event not read yet. For a log
that was restored from a backup it also has `"log"`, the id of the log, because offsets of both may differ.
"""

from __future__ import annotations

import time

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from penstock.errors import EventsLostError, EventsRemovedError, OptionError
from penstock.model.kinds import LETTERS
from penstock.pipeline.causes import plainly
from penstock.pipeline.source.events import EventRange, RangeReader, past_end
from penstock.pipeline.source.log import Extent
from penstock.pipeline.source.options import Options

Offset = dict[str, int | str]

_LETTERS_MAX = max(map(len, LETTERS.values()))  # Per record.


class EventStreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of ranges of offsets. Spark's checkpoint keeps them, so a range that is read again has the same
    events."""

    def __init__(self, options: Options) -> None:
        if options.end != "latest":
            raise OptionError("endingOffset is for batch reads: a stream has no end")
        super().__init__(options)
        self._target: int | None = None  # Where a run with AvailableNow ends.
        self._waiting_since: float | None = None  # When a batch that is too small was first seen.

    @plainly
    def initialOffset(self) -> Offset:
        extent = self._log.extent()
        return _offset_at(self._check(self._offset(self._options.start, extent), extent), extent)

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
    def reportLatestOffset(self) -> Offset:
        extent = self._log.extent()
        return _offset_at(extent.end, extent)

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        extent = self._log.extent()
        first = _offset_of(start, extent)
        begin = self._check(first, extent)
        end = extent.end if self._target is None else min(extent.end, self._target)
        if self._waits(end - begin):
            return _offset_at(first, extent)
        if not isinstance(limit, ReadAllAvailable):
            end = self._limited(begin, end)
        return _offset_at(max(first, end), extent)

    def _waits(self, records: int) -> bool:
        """Whether to wait for more events: there are too few for a batch, and they have not waited long."""
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
        """The end of a batch within both limits, although Spark knows only one. It has at least one record."""
        if self._options.events_max is not None:
            end = min(end, begin + max(1, self._options.events_max // _LETTERS_MAX))
        if self._options.bytes_max is None or begin >= end:
            return end
        try:
            return min(end, self._log.offset_within(begin, self._options.bytes_max))
        except EventsRemovedError as error:
            return self._limited(self._skip(begin, error.earliest), end)

    @plainly
    def partitions(self, start: Offset, end: Offset) -> list[EventRange]:
        extent = self._log.extent()
        first, last = _offset_of(start, extent), _offset_of(end, extent)
        if first >= last:
            return []
        if last > extent.end:
            raise EventsLostError(f"offset {last} of the checkpoint {past_end(extent)}")
        return self._divide(self._check(first, extent), last, extent)

    def stop(self) -> None:
        if "_log" in self.__dict__:
            self._log.close()


def _offset_at(offset: int, extent: Extent) -> Offset:
    return {str(extent.shard): offset} | ({"log": extent.id} if extent.ancestors else {})


def _offset_of(offsets: Offset, extent: Extent) -> int:
    """The offset in a checkpoint. Raises `EventsLostError` if the checkpoint is one of another log."""
    try:
        offset = int(offsets[str(extent.shard)])
    except KeyError:
        raise EventsLostError(
            f"the checkpoint belongs to shard {', '.join(offsets)}, but this is shard {extent.shard}"
        ) from None
    log = offsets.get("log")
    end = extent.same_until(None if log is None else str(log))
    if end is not None and offset > end:
        raise EventsLostError(
            f"the log was restored from a backup that ends at offset {end}, but the checkpoint has read up to"
            f" {offset}: events that the query has processed do not exist any more. Restore the checkpoint and the"
            " output of the query from before the backup, or start with a new checkpoint"
        )
    return offset
