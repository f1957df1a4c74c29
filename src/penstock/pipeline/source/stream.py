"""Reads the events of a log as a stream. `offsets.py` has the form of its offset."""

from __future__ import annotations

import time
from collections.abc import Sequence

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
from penstock.pipeline.source.offsets import Offset, level, limited, offset_at, offsets_of
from penstock.pipeline.source.options import Options

_LETTERS_MAX = max(map(len, LETTERS.values()))  # Per record.


class EventStreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of ranges of offsets. Spark's checkpoint keeps them, so a range that is read again has the same
    events."""

    def __init__(self, options: Options) -> None:
        if options.end != "latest":
            raise OptionError("endingOffset is for batch reads: a stream has no end")
        super().__init__(options)
        self._targets: list[int] | None = None  # Where a run with AvailableNow ends, in each shard.
        self._waiting_since: float | None = None  # When a batch that is too small was first seen.

    @plainly
    def initialOffset(self) -> Offset:
        extents = self._store.extents()
        return offset_at(
            self._checked(self._offsets("startingOffset", self._options.start, extents), extents), extents
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.events_max is not None:
            return ReadMaxRows(self._options.events_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = [extent.end for extent in self._store.extents()]

    @plainly
    def reportLatestOffset(self) -> Offset:
        extents = self._store.extents()
        return offset_at([extent.end for extent in extents], extents)

    @plainly
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        extents = self._store.extents()
        firsts = offsets_of(start, extents)
        starts = self._checked(firsts, extents)
        ends = [extent.end for extent in extents]
        if self._targets is not None:
            ends = list(map(min, ends, self._targets))
        if self._waits(sum(max(0, end - first) for first, end in zip(starts, ends, strict=True))):
            return offset_at(firsts, extents)
        if not isinstance(limit, ReadAllAvailable):
            ends = self._limited(starts, ends, extents)
        return offset_at(list(map(max, firsts, ends)), extents)

    def _checked(self, offsets: Sequence[int], extents: Sequence[Extent]) -> list[int]:
        return [self._check(offset, extent) for offset, extent in zip(offsets, extents, strict=True)]

    def _waits(self, records: int) -> bool:
        """Whether to wait for more events: there are too few for a batch, and they have not waited long."""
        enough = self._options.events_min is None or records >= self._options.events_min or self._targets is not None
        if enough or not records:
            self._waiting_since = None
            return False
        now = time.monotonic()
        self._waiting_since = since = self._waiting_since or now
        if now - since < self._options.delay_seconds:
            return True
        self._waiting_since = None
        return False

    def _limited(self, starts: Sequence[int], ends: Sequence[int], extents: Sequence[Extent]) -> list[int]:
        """The ends of a batch within both limits, although Spark knows only one. It has at least one record."""
        if self._options.events_max is not None:
            ends = limited(starts, ends, max(1, self._options.events_max // _LETTERS_MAX))
        if self._options.bytes_max is None:
            return list(ends)
        ranges = list(zip(extents, starts, ends, strict=True))
        sizes = [extent.bytes_of(start, end) for extent, start, end in ranges]
        share = max(1, level(sizes, self._options.bytes_max))
        return [self._within(extent.shard, start, end, share) for extent, start, end in ranges]

    def _within(self, shard: int, start: int, end: int, bytes_max: int) -> int:
        if start >= end:
            return end
        try:
            return min(end, self._store.logs[shard].offset_within(start, bytes_max))
        except EventsRemovedError as error:
            return self._within(shard, self._skip(start, error.earliest), end, bytes_max)

    @plainly
    def partitions(self, start: Offset, end: Offset) -> list[EventRange]:
        extents = self._store.extents()
        starts, ends = offsets_of(start, extents), offsets_of(end, extents)
        for last, extent in zip(ends, extents, strict=True):
            if last > extent.end:
                raise EventsLostError(f"offset {last} of the checkpoint {past_end(extent)}")
        firsts = [
            self._check(first, extent) if first < last else last
            for first, last, extent in zip(starts, ends, extents, strict=True)
        ]
        return self._divide(firsts, ends, extents)

    def stop(self) -> None:
        if "_store" in self.__dict__:
            self._store.close()
