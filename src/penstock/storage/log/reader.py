"""Reading the log while it is written: the place of any offset or time, and whole batches from there on.

For threads beside the one that writes: a reader has files of its own, and sees what a `View` says is durable, which
nobody changes any more. It finds its place by an index with an entry for every so many bytes of a segment, made from
the headers of batches when it is first needed.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.errors import DamagedLogError, EventsRemovedError
from penstock.limits import READ_BYTES
from penstock.model.kinds import Kind
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import (
    HEADER_BYTES,
    RECORD_BYTES,
    RECORD_DTYPE,
    Header,
    extent_bounds,
    is_whole,
    read_header,
    records_of,
)
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, Segment, next_header

_INDEX_EVERY_BYTES = 64 << 10
_INDEXES_MAX = 1024  # Segments whose index is kept; one of 16 MiB takes 6 KiB.
_WALK_BYTES = 16 << 10  # Read at once while walking from header to header.


class View(NamedTuple):
    """What was durable at one moment."""

    segments: tuple[Segment, ...]
    end_offset: int
    end_position: Position

    def segment_at(self, position: Position) -> int:
        """The index of the last segment that begins at or before a position."""
        return bisect_right(self.segments, position, key=lambda segment: segment.base_position) - 1


class Place(NamedTuple):
    """Where a batch begins."""

    offset: int
    position: Position


Batches = list[tuple[Header, bytes]]


class BatchCursor:
    """Goes through the log from one position to its end, a piece at a time. For one thread at a time."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._segment: Segment | None = None
        self._file: int | None = None

    def read(self, view: View, bytes_max: int) -> Batches:
        """The next whole batches, as many as `bytes_max` has room for, one at least; none at the end of the view."""
        if self.position >= view.end_position:
            return []
        end = self._enter(view)
        data = self._pread(self.position, min(max(bytes_max, HEADER_BYTES), end - self.position))
        found: Batches = []
        at = 0
        while at + HEADER_BYTES <= len(data):
            header = _checked_header(data[at : at + HEADER_BYTES], self.position + at)
            if at + header.total_bytes > len(data):
                if found:
                    break
                data = self._pread(self.position, header.total_bytes)
            found.append((header, _whole(header, data[at + HEADER_BYTES : at + header.total_bytes])))
            at += header.total_bytes
        self.position += at
        return found

    def read_on(self, view: View) -> Iterator[Batches]:
        """Everything from where the last call ended to the end of the view, in pieces. What was removed meanwhile is
        left out."""
        self.position = max(self.position, earliest(view).position)
        try:
            while found := self.read(view, READ_BYTES):
                yield found
        except EventsRemovedError:
            pass  # Just now; the next call goes on from what is left.
        finally:
            self.close()

    def read_sound(self, view: View, until: Position) -> tuple[Batches, bool]:
        """The whole batches up to a position in the same segment, and whether damaged ones were passed over."""
        end = min(self._enter(view), until)
        assert self._segment is not None
        assert self._file is not None
        found: Batches = []
        for header in walk(self._file, self._segment, self.position, end, over_damage=True):
            at = header.base_position + HEADER_BYTES
            payload = os.pread(self._file, header.total_bytes - HEADER_BYTES, self._segment.file_offset(at))
            if is_whole(header, payload):
                found.append((header, payload))
        read, self.position = end - self.position, end
        return found, sum([header.total_bytes for header, _ in found]) < read

    def read_raw(self, view: View, until: Position, bytes_max: int) -> bytes:
        """The next bytes, whatever they are; none at `until`."""
        if self.position >= until:
            return b""
        end = self._enter(view)
        data = self._pread(self.position, min(bytes_max, until - self.position, end - self.position))
        self.position += len(data)
        return data

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = self._segment = None

    def _enter(self, view: View) -> Position:
        """Open the segment that holds the position; where it ends."""
        index = view.segment_at(self.position)
        if index < 0:
            raise EventsRemovedError(earliest(view).offset)
        segment = view.segments[index]
        if self._segment != segment:
            self.close()
            try:
                self._file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                raise EventsRemovedError(_following_offset(view, index)) from None
            self._segment = segment
        end = end_of(view, index)
        if self.position >= end:
            raise EventsRemovedError(_following_offset(view, index))
        return end

    def _pread(self, position: Position, size: int) -> bytes:
        assert self._segment is not None
        assert self._file is not None
        data = os.pread(self._file, size, self._segment.file_offset(position))
        if len(data) < min(size, HEADER_BYTES):
            raise DamagedLogError(f"{self._segment.path}: {size} bytes at position {position} cannot be read")
        return data


def earliest(view: View) -> Place:
    """From where on nothing is missing: what lies before a hole is kept for its messages, not for readers."""
    for index in range(len(view.segments) - 1, 0, -1):
        try:
            if end_of(view, index - 1) == view.segments[index].base_position:
                continue
        except EventsRemovedError:
            pass  # Just now: a hole.
        return Place(view.segments[index].base_offset, view.segments[index].base_position)
    if not view.segments:
        return Place(view.end_offset, view.end_position)
    return Place(view.segments[0].base_offset, view.segments[0].base_position)


def queues_created(header: Header, payload: bytes) -> Iterator[tuple[int, str]]:
    """The numbers and names of the queues that a batch creates."""
    records = records_of(header, payload)
    created = np.flatnonzero(records["kind"] == Kind.QUEUE_CREATED)
    if not len(created):
        return
    bounds = extent_bounds(records)
    for at in created.tolist():
        facts = payload[bounds[at] : bounds[at + 1]]
        yield int(records["queue"][at]), msgspec.json.decode(facts, type=_Named).name


def names_told(header: Header, payload: bytes) -> dict[int, str]:
    """What a batch says that numbers of names stand for: where they are defined, and where they are forgotten."""
    records = records_of(header, payload)
    told = np.flatnonzero(np.isin(records["kind"], (Kind.NAME_DEFINED, Kind.NAME_FORGOTTEN)))
    if not len(told):
        return {}
    bounds = extent_bounds(records)
    return {int(records["queue"][at]): payload[bounds[at] : bounds[at + 1]].decode() for at in told.tolist()}


class _Named(msgspec.Struct):
    name: str


class Extents:
    """Extents by their positions, each out of a whole batch that was checked. For one thread at a time: the last
    batch is kept, since what is read together mostly lies together."""

    def __init__(self, index: LogIndex, view: View) -> None:
        self._index = index
        self._view = view
        self._base = 0
        self._batch = b""

    def read(self, position: Position, size: int) -> bytes:
        base, batch = self.batch(position)
        return batch[position - base : position - base + size]

    def batch(self, position: Position) -> tuple[Position, bytes]:
        """What a batch holds, and where that begins."""
        if not self._base <= position < self._base + len(self._batch):
            header, self._batch = self._index.batch_at(self._view, position)
            self._base = header.base_position + HEADER_BYTES
        return self._base, self._batch


class LogIndex:
    """Offsets and times to places, for all readers together."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._indexes: OrderedDict[int, _SegmentIndex] = OrderedDict()

    def place_of(self, view: View, offset: int) -> Place:
        """The batch that holds an offset; the end of the view for its end. Raises `EventsRemovedError`."""
        if offset >= view.end_offset:
            return Place(view.end_offset, view.end_position)
        first = earliest(view)
        if offset < first.offset:
            raise EventsRemovedError(first.offset)
        at = bisect_right(view.segments, offset, key=lambda segment: segment.base_offset) - 1
        return self._indexed(view, at).place_of(offset, end_of(view, at))

    def batch_at(self, view: View, position: Position) -> tuple[Header, bytes]:
        """The whole batch that holds a position, checked. Raises `EventsRemovedError` if it is gone."""
        at = view.segment_at(position)
        if at < 0 or position >= (end := end_of(view, at)):
            raise EventsRemovedError(earliest(view).offset)
        return self._indexed(view, at).batch_at(position, end)

    def batch_end(self, view: View, start: Place, to_offset: int, bytes_max: int) -> Place:
        """The end of the last batch that begins before an offset and fits into so many bytes; of one at least."""
        limit = min(view.end_position, start.position + bytes_max)
        place = start
        at = view.segment_at(start.position)
        while place.position < limit and place.offset < to_offset:
            end = min(end_of(view, at), limit)
            place = self._indexed(view, at).last_before(place, to_offset, end)
            at += 1
            if at == len(view.segments) or place.position != view.segments[at].base_position:
                break
        if place.position > start.position:
            return place
        return self._indexed(view, view.segment_at(start.position)).next_after(start)

    def offset_at(self, view: View, time: Nanos) -> int:
        """The offset of the first event at or after a time; the end of the view if there is none."""
        first = bisect_left(view.segments, earliest(view).offset, key=lambda segment: segment.base_offset)
        low, high = first, len(view.segments)  # The first segment that begins at or after the time is in between.
        while low < high:
            middle = (low + high) // 2
            if self._indexed(view, middle).first_time >= time:
                high = middle
            else:
                low = middle + 1
        if low == first:
            return view.segments[first].base_offset if first < len(view.segments) else view.end_offset
        found = self._indexed(view, low - 1).offset_at(time, end_of(view, low - 1))
        if found is not None:
            return found
        return view.segments[low].base_offset if low < len(view.segments) else view.end_offset

    def _indexed(self, view: View, at: int) -> _SegmentIndex:
        segment = view.segments[at]
        with self._lock:
            index = self._indexes.get(segment.base_offset)
            if index is None or index.segment != segment:
                index = self._indexes[segment.base_offset] = _SegmentIndex(segment)
                if len(self._indexes) > _INDEXES_MAX:
                    self._indexes.popitem(last=False)
            self._indexes.move_to_end(segment.base_offset)
            return index


class _SegmentIndex:
    """Every so many bytes of a segment: the offset, the position and the first time of a batch."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._lock = Lock()
        self._covered = Place(segment.base_offset, segment.base_position)
        self._offsets = [segment.base_offset]
        self._positions = [segment.base_position]
        with self._open() as file:
            end = segment.base_position + os.fstat(file).st_size - SEGMENT_HEADER_BYTES
            first = next(walk(file, segment, segment.base_position, end, over_damage=True), None)
            self._times = [_first_time(file, segment, first) if first else segment.created]

    @property
    def first_time(self) -> Nanos:
        return self._times[0]

    def place_of(self, offset: int, end: Position) -> Place:
        with self._open() as file:
            self._cover(file, end)
            for header in walk(file, self.segment, self._before(self._offsets, offset), end, over_damage=True):
                if header.base_offset > offset:
                    break
                if header.base_offset + header.records > offset:
                    return Place(header.base_offset, header.base_position)
        raise DamagedLogError(f"{self.segment.path}: the batch of offset {offset} is damaged")

    def batch_at(self, position: Position, end: Position) -> tuple[Header, bytes]:
        with self._open() as file:
            self._cover(file, end)
            for header in walk(file, self.segment, self._before(self._positions, position), end, over_damage=True):
                if header.base_position + header.total_bytes > position:
                    break
            else:
                header = None
            if header is None or header.base_position > position:
                raise DamagedLogError(f"{self.segment.path}: the batch at position {position} is damaged")
            at = self.segment.file_offset(header.base_position) + HEADER_BYTES
            payload = os.pread(file, header.total_bytes - HEADER_BYTES, at)
        return header, _whole(header, payload)

    def last_before(self, start: Place, to_offset: int, end: Position) -> Place:
        """The end of the last batch that begins before an offset and ends at or before a position."""
        with self._open() as file:
            self._cover(file, end)
            by_offset = self._before(self._offsets, to_offset - 1)
            by_position = self._before(self._positions, end)
            place = start
            for header in walk(file, self.segment, max(start.position, min(by_offset, by_position))):
                after = Place(header.base_offset + header.records, header.base_position + header.total_bytes)
                if header.base_offset >= to_offset or after.position > end:
                    return max(place, Place(header.base_offset, header.base_position))
                place = after
                if after.position == end:
                    break
        return place

    def next_after(self, start: Place) -> Place:
        with self._open() as file:
            header = next(walk(file, self.segment, start.position))
        return Place(header.base_offset + header.records, header.base_position + header.total_bytes)

    def offset_at(self, time: Nanos, end: Position) -> int | None:
        with self._open() as file:
            self._cover(file, end)
            for header in walk(file, self.segment, self._before(self._times, time - 1), end, over_damage=True):
                times = _times(file, self.segment, header)
                if times[-1] >= time:
                    return header.base_offset + int(np.searchsorted(times, time))
        return None

    @contextmanager
    def _open(self) -> Iterator[int]:
        try:
            file = os.open(self.segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise EventsRemovedError(self._covered.offset) from None
        try:
            yield file
        finally:
            os.close(file)

    def _before(self, keys: list[int], key: int) -> Position:
        """The position of the last entry that is not after a key."""
        return self._positions[max(0, bisect_right(keys, key) - 1)]

    def _cover(self, file: int, end: Position) -> None:
        """Go on to where the segment ends now."""
        with self._lock:
            if self._covered.position >= end:
                return
            for header in walk(file, self.segment, self._covered.position, end, over_damage=True):
                if header.base_position >= self._positions[-1] + _INDEX_EVERY_BYTES:
                    self._times.append(_first_time(file, self.segment, header))
                    self._offsets.append(header.base_offset)
                    self._positions.append(header.base_position)
                self._covered = Place(header.base_offset + header.records, header.base_position + header.total_bytes)
            self._covered = Place(self._covered.offset, end)


def walk(
    file: int, segment: Segment, position: Position, end: Position | None = None, *, over_damage: bool = False
) -> Iterator[Header]:
    """The headers of the batches from a position on. `over_damage`: those up to `end` that can be read."""
    block, base = b"", position
    while end is None or position < end:
        start = position - base
        if start + HEADER_BYTES > len(block):
            block, base, start = os.pread(file, _WALK_BYTES, segment.file_offset(position)), position, 0
        header = read_header(block[start : start + HEADER_BYTES])
        if header is None or header.base_position != position:
            if not over_damage or end is None:
                raise DamagedLogError(f"there is no batch at position {position}")
            header = next_header(os.pread(file, end - position, segment.file_offset(position)), position)
            if header is None:
                return
        yield header
        position = header.base_position + header.total_bytes


def _checked_header(data: bytes, position: Position) -> Header:
    header = read_header(data)
    if header is None or header.base_position != position:
        raise DamagedLogError(f"there is no batch at position {position}")
    return header


def _whole(header: Header, payload: bytes) -> bytes:
    if not is_whole(header, payload):
        end = header.base_offset + header.records
        raise DamagedLogError(f"events {header.base_offset} to {end - 1} are damaged; read on from offset {end}")
    return payload


def _first_time(file: int, segment: Segment, header: Header) -> Nanos:
    at = header.base_position + HEADER_BYTES + header.heap_bytes
    data = os.pread(file, RECORD_BYTES, segment.file_offset(at))
    return int(np.frombuffer(data, RECORD_DTYPE)["time"][0])


def _times(file: int, segment: Segment, header: Header) -> np.ndarray:
    at = header.base_position + HEADER_BYTES + header.heap_bytes
    data = os.pread(file, RECORD_BYTES * header.records, segment.file_offset(at))
    return np.frombuffer(data, RECORD_DTYPE)["time"]


def end_of(view: View, index: int) -> Position:
    """Where a segment ends: a finished one is cut to its last batch."""
    if index == len(view.segments) - 1:
        return view.end_position
    segment = view.segments[index]
    try:
        size = os.stat(segment.path).st_size
    except FileNotFoundError:
        raise EventsRemovedError(_following_offset(view, index)) from None
    return segment.base_position + size - SEGMENT_HEADER_BYTES


def _following_offset(view: View, index: int) -> int:
    return view.segments[index + 1].base_offset if index + 1 < len(view.segments) else view.end_offset
