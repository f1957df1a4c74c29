"""Reads the log while it is written: finds offsets and times, and returns whole batches from there on.

Thread-safe. A reader sees only the durable part of the log, as given by a `View`, which no longer changes. It opens
the parts itself.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import DamagedLogError, EventsRemovedError
from penstock.limits import READ_BYTES
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import HEADER_BYTES, Batches, Header, Point, check_payload, is_whole, read_header
from penstock.storage.log.index import PartIndexes
from penstock.storage.log.parts import Part, PartFile, ReadAhead, part_at, walk


class View(NamedTuple):
    """What was durable at one moment. Its oldest parts may be removed later: reading them then raises
    `EventsRemovedError`."""

    parts: tuple[Part, ...]
    end: Point
    indexes: PartIndexes

    def earliest(self) -> Point:
        """The point after which no event is missing. Parts before a hole are kept for their messages, not for
        readers."""
        for index in range(len(self.parts) - 1, 0, -1):
            try:
                if self.part_end(index - 1) == self.parts[index].base_position:
                    continue
            except EventsRemovedError:
                pass  # Removed just now: a hole.
            return self._start_of(index)
        return self._start_of(0) if self.parts else self.end

    def point_of(self, offset: int) -> Point:
        """Where the batch begins that holds an offset; the end of the view for its end or anything past it."""
        if offset >= self.end.offset:
            return self.end
        first = self.earliest()
        if offset < first.offset:
            raise EventsRemovedError(first.offset)
        at = self.part_of(offset)
        return self.indexes.of(self.parts[at]).point_of(offset, self.part_end(at))

    def part_of(self, offset: int) -> int:
        """The index of the last part that begins at or before an offset; -1 if there is none."""
        return bisect_right(self.parts, offset, key=lambda part: part.base_offset) - 1

    def offset_at(self, time: Nanos) -> int:
        """The offset of the first event at or after a time; the end of the view if there is none."""
        parts, first = self.parts, bisect_left(self.parts, self.earliest().offset, key=lambda part: part.base_offset)
        low, high = first, len(parts)  # The first part that begins at or after the time is in between.
        while low < high:
            middle = (low + high) // 2
            if self.indexes.of(parts[middle]).first_time >= time:
                high = middle
            else:
                low = middle + 1
        if low > first:
            found = self.indexes.of(parts[low - 1]).offset_at(time, self.part_end(low - 1))
            if found is not None:
                return found
        return parts[low].base_offset if low < len(parts) else self.end.offset

    def batch_at(self, position: Position) -> tuple[Header, bytes]:
        """The whole batch that holds a position, checked."""
        at = part_at(self.parts, position)
        if at < 0 or position >= (end := self.part_end(at)):
            raise EventsRemovedError(self.earliest().offset)
        return self.indexes.of(self.parts[at]).batch_at(position, end)

    def batch_end(self, start: Point, to_offset: int, bytes_max: int) -> Point:
        """The end of the last batch that begins before an offset and fits into `bytes_max`; at least one batch."""
        limit = min(self.end.position, start.position + bytes_max)
        point, at = start, part_at(self.parts, start.position)
        while point.position < limit and point.offset < to_offset:
            end = min(self.part_end(at), limit)
            point = self.indexes.of(self.parts[at]).last_before(point, to_offset, end)
            at += 1
            if at == len(self.parts) or point.position != self.parts[at].base_position:
                break
        if point.position > start.position:
            return point
        return self.indexes.of(self.parts[part_at(self.parts, start.position)]).next_after(start)

    def part_end(self, index: int) -> Position:
        """Where a part ends: the newest one with the view."""
        if index == len(self.parts) - 1:
            return self.end.position
        try:
            return self.parts[index].end()
        except FileNotFoundError:
            raise EventsRemovedError(self.offset_after(index)) from None

    def offset_after(self, index: int) -> int:
        """The first offset that is not in a part nor before it."""
        return self.parts[index + 1].base_offset if index + 1 < len(self.parts) else self.end.offset

    def _start_of(self, index: int) -> Point:
        return Point(self.parts[index].base_offset, self.parts[index].base_position)


class Cursor:
    """Reads the log from a position on, a piece at a time. For one thread at a time."""

    def __init__(self, position: Position) -> None:
        self.position = position
        self._part: Part | None = None
        self._file: PartFile | None = None

    def next_bytes(self, view: View, bytes_max: int) -> int:
        """How much `read` will read, approximately."""
        if self.position >= view.end.position:
            return 0
        file, end = self._enter(view)
        header = _checked_header(self._read(file, HEADER_BYTES), self.position)
        return max(min(bytes_max, end - self.position), header.total_bytes)

    def read(self, view: View, bytes_max: int) -> Batches:
        """The next whole batches, as many as fit into `bytes_max`, at least one; none at the end of the view."""
        if self.position >= view.end.position:
            return []
        file, end = self._enter(view)
        data = self._read(file, min(max(bytes_max, HEADER_BYTES), end - self.position))
        found: Batches = []
        at = 0
        while at + HEADER_BYTES <= len(data):
            header = _checked_header(data[at : at + HEADER_BYTES], self.position + at)
            if at + header.total_bytes > len(data):
                if found:
                    break
                data = self._read(file, header.total_bytes)
            found.append((header, check_payload(header, data[at + HEADER_BYTES : at + header.total_bytes])))
            at += header.total_bytes
        self.position += at
        return found

    def read_on(self, view: View) -> Iterator[Batches]:
        """Everything from where the last call ended to the end of the view, in pieces. What was removed meanwhile is
        left out."""
        self.position = max(self.position, view.earliest().position)
        try:
            while found := self.read(view, READ_BYTES):
                yield found
        except EventsRemovedError:
            pass  # Just removed; the next call continues with what is left.
        finally:
            self.close()

    def read_sound(self, view: View, until: Position) -> tuple[Batches, bool]:
        """The whole batches up to a position in the same part, and whether damaged ones were skipped."""
        file, end = self._enter(view)
        end = min(end, until)
        found: Batches = []
        ahead = ReadAhead(file)
        for header in walk(ahead, self.position, end, over_damage=True):
            payload = ahead.read(header.base_position + HEADER_BYTES, header.total_bytes - HEADER_BYTES)
            if is_whole(header, payload):
                found.append((header, payload))
        read, self.position = end - self.position, end
        return found, sum([header.total_bytes for header, _ in found]) < read

    def read_raw(self, view: View, until: Position, bytes_max: int) -> bytes:
        """The next bytes, unchecked; none at `until`."""
        if self.position >= until:
            return b""
        file, end = self._enter(view)
        data = self._read(file, min(bytes_max, until - self.position, end - self.position))
        self.position += len(data)
        return data

    def close(self) -> None:
        """Close what is open. The next read opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = self._part = None

    def _enter(self, view: View) -> tuple[PartFile, Position]:
        """Open the part that holds the position; where it ends."""
        index = part_at(view.parts, self.position)
        if index < 0:
            raise EventsRemovedError(view.earliest().offset)
        part = view.parts[index]
        if self._file is None or self._part is not part:  # Of a log that was opened again, the file may be another.
            self.close()
            try:
                self._file = part.open()
            except FileNotFoundError:
                raise EventsRemovedError(view.offset_after(index)) from None
            self._part = part
        end = view.part_end(index)
        if self.position >= end:
            raise EventsRemovedError(view.offset_after(index))
        return self._file, end

    def _read(self, file: PartFile, size: int) -> bytes:
        data = file.read(self.position, size)
        if len(data) < min(size, HEADER_BYTES):
            raise DamagedLogError(f"{self._part}: {size} bytes at position {self.position} cannot be read")
        return data


class Extents:
    """Extents by their positions, each from a whole batch that was checked. For one thread at a time: the last batch
    is kept, because extents that are read together mostly lie together."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._base = 0
        self._batch = b""

    def read(self, position: Position, size: int) -> bytes:
        base, batch = self.batch(position)
        return batch[position - base : position - base + size]

    def batch(self, position: Position) -> tuple[Position, bytes]:
        """The payload of the batch that holds a position, and where that payload begins."""
        if not self._base <= position < self._base + len(self._batch):
            header, self._batch = self._view.batch_at(position)
            self._base = header.base_position + HEADER_BYTES
        return self._base, self._batch


def _checked_header(data: bytes, position: Position) -> Header:
    header = read_header(data)
    if header is None or header.base_position != position:
        raise DamagedLogError(f"there is no batch at position {position}")
    return header
