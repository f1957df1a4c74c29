"""Finds batches in a part by offset, position and time.

The index has one entry per fixed number of bytes. It is made from the headers of batches when it is first needed, and
grows with the part. All readers of a log share the indexes of its parts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import AbstractContextManager
from threading import Lock

import numpy as np

from penstock.errors import DamagedLogError
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import HEADER_BYTES, RECORD_BYTES, RECORD_DTYPE, Header, Point, check_payload
from penstock.storage.log.parts import Part, PartCache, PartFile, opened, walk

_INDEX_EVERY_BYTES = 64 << 10
_INDEXES_MAX = 1024  # Parts whose index is kept; one of 16 MiB takes 6 KiB.


class PartIndex:
    """The offset, the position and the first time of some batches of a part, at regular distances."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._lock = Lock()
        self._covered = Point(part.base_offset, part.base_position)
        self._offsets = [part.base_offset]
        self._positions = [part.base_position]
        with self._open() as file:
            first = next(walk(file, part.base_position, file.end(), over_damage=True), None)
            self._times = [_times(file, first, 1)[0] if first else part.created]

    @property
    def first_time(self) -> Nanos:
        return self._times[0]

    def point_of(self, offset: int, end: Position) -> Point:
        """Where the batch begins that holds an offset."""
        with self._open() as file:
            self._cover(file, end)
            for header in walk(file, self._before(self._offsets, offset), end, over_damage=True):
                if header.base_offset > offset:
                    break
                if header.end.offset > offset:
                    return header.start
        raise DamagedLogError(f"{self._part}: the batch of offset {offset} is damaged")

    def batch_at(self, position: Position, end: Position) -> tuple[Header, bytes]:
        """The batch that holds a position, checked."""
        with self._open() as file:
            self._cover(file, end)
            for header in walk(file, self._before(self._positions, position), end, over_damage=True):
                if header.end.position > position:
                    break
            else:
                header = None
            if header is None or header.base_position > position:
                raise DamagedLogError(f"{self._part}: the batch at position {position} is damaged")
            payload = file.read(header.base_position + HEADER_BYTES, header.total_bytes - HEADER_BYTES)
        return header, check_payload(header, payload)

    def last_before(self, start: Point, to_offset: int, end: Position) -> Point:
        """The end of the last batch that begins before an offset and ends at or before a position."""
        with self._open() as file:
            self._cover(file, end)
            by_offset = self._before(self._offsets, to_offset - 1)
            by_position = self._before(self._positions, end)
            point = start
            for header in walk(file, max(start.position, min(by_offset, by_position))):
                after = header.end
                if header.base_offset >= to_offset or after.position > end:
                    return max(point, header.start)
                point = after
                if after.position == end:
                    break
        return point

    def next_after(self, start: Point) -> Point:
        """The end of the batch that begins at a point."""
        with self._open() as file:
            return next(walk(file, start.position)).end

    def offset_at(self, time: Nanos, end: Position) -> int | None:
        """The offset of the first event at or after a time; None if there is none in this part."""
        with self._open() as file:
            self._cover(file, end)
            for header in walk(file, self._before(self._times, time - 1), end, over_damage=True):
                times = _times(file, header, header.records)
                if times[-1] >= time:
                    return header.base_offset + bisect_left(times, time)
        return None

    def _open(self) -> AbstractContextManager[PartFile]:
        return opened(self._part, self._covered.offset)

    def _before(self, keys: list[int], key: int) -> Position:
        """The position of the last entry that is not after a key."""
        return self._positions[max(0, bisect_right(keys, key) - 1)]

    def _cover(self, file: PartFile, end: Position) -> None:
        """Extend the index to where the part ends now."""
        with self._lock:
            if self._covered.position >= end:
                return
            for header in walk(file, self._covered.position, end, over_damage=True):
                if header.base_position >= self._positions[-1] + _INDEX_EVERY_BYTES:
                    self._times += _times(file, header, 1)
                    self._offsets.append(header.base_offset)
                    self._positions.append(header.base_position)
                self._covered = header.end
            self._covered = Point(self._covered.offset, end)


class PartIndexes(PartCache[PartIndex]):
    """The indexes of the parts of one log."""

    def __init__(self) -> None:
        super().__init__(PartIndex, _INDEXES_MAX)


def _times(file: PartFile, header: Header, count: int) -> list[Nanos]:
    """The times of the first records of a batch."""
    data = file.read(header.base_position + HEADER_BYTES + header.heap_bytes, RECORD_BYTES * count)
    times: list[Nanos] = np.frombuffer(data, RECORD_DTYPE)["time"].tolist()
    return times
