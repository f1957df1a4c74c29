"""Reads everything of a damaged log that can still be read, and writes it as a whole log with holes.

A batch counts if its header and its payload are whole and it is at its own position. What is between such batches is
lost. In the log that is written, each run of batches without a gap is a segment, so that nothing in it is damaged; a
snapshot at its end covers the holes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from penstock.errors import DamagedHeaderError
from penstock.model.events import Event
from penstock.model.kinds import Kind
from penstock.model.values import Nanos, Position
from penstock.storage.directory import DataDirectory, create_private, sync
from penstock.storage.log.batch import HEADER_BYTES, START, Header, Point, is_whole, read_header, records_of
from penstock.storage.log.continuing import continue_log
from penstock.storage.log.decode import events_of
from penstock.storage.log.parts import next_header
from penstock.storage.log.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    read_segment,
    readable,
    segment_path,
    segment_paths,
)

Advance = Callable[[int], None]


class Sound(NamedTuple):
    """A batch that can be read, and the part of the log that it is in."""

    header: Header
    payload: bytes
    segment: Segment

    @property
    def data(self) -> bytes:
        return self.header.to_bytes() + self.payload

    @property
    def has_keys(self) -> bool:
        """Whether a message in it has an object and a key."""
        records = records_of(self.header, self.payload)
        return bool(((records["kind"] == Kind.LOGGED) & (records["object"] > 0) & (records["key_bytes"] > 0)).any())

    def events(self) -> Iterator[tuple[int, Event, Position]]:
        """Each event with its offset and its position."""
        for offset, (event, position) in enumerate(events_of(self.header, self.payload), self.header.base_offset):
            yield offset, event, position


class SoundLog:
    """The batches of a log that can be read, in order."""

    def __init__(self, directory: DataDirectory, shard: int) -> None:
        self._paths = sorted(segment_paths(directory.log), key=_first_offset)
        self._shard = shard
        self.end = START
        self.ends_open = bool(not self._paths)  # Whether something may be missing after the last batch.

    @property
    def size(self) -> int:
        return sum(path.stat().st_size for path in self._paths)

    def batches(self, advance: Advance = lambda _: None) -> Iterator[Sound]:
        for path, following in zip(self._paths, [*self._paths[1:], None], strict=False):
            with path.open("rb") as file:
                data = readable(file, 0, os.fstat(file.fileno()).st_size)
            segment = self._opened(path, following, data)
            found = _walk(data, segment.base_position) if segment else iter(())
            yield from self._checked(found, segment)
            if following is None:
                rest = data[SEGMENT_HEADER_BYTES + self.end.position - segment.base_position :] if segment else b""
                self.ends_open = not rest or bool(rest.strip(b"\0"))
            advance(len(data))

    def _checked(self, found: Iterator[tuple[Header, bytes]], segment: Segment | None) -> Iterator[Sound]:
        """The batches that follow those before."""
        for header, payload in found:
            assert segment is not None
            if header.base_offset < self.end.offset:
                continue  # A copy of something that was read already.
            self.end = header.end
            yield Sound(header, payload, segment)

    def _opened(self, path: Path, following: Path | None, data: bytes) -> Segment | None:
        """A segment, also one whose header or name is damaged. None if nothing says where it is in the log."""
        try:
            return read_segment(path)
        except DamagedHeaderError:
            position = self._position_of(path, following, data)
            return None if position is None else Segment(path, self._shard, self.end.offset, position, 0)

    def _position_of(self, path: Path, following: Path | None, data: bytes) -> Position | None:
        """Where a segment begins whose header is damaged."""
        first = read_header(data[SEGMENT_HEADER_BYTES:][:HEADER_BYTES])
        if first and first.base_offset == _first_offset(path):
            return first.base_position
        if _first_offset(path) == self.end.offset:
            return self.end.position
        try:
            after = read_segment(following) if following else None
        except DamagedHeaderError:
            return None
        return after.base_position - len(data) + SEGMENT_HEADER_BYTES if after else None


def _first_offset(path: Path) -> int:
    """The offset that a segment begins with, by its header or else by its name."""
    try:
        return read_segment(path).base_offset
    except DamagedHeaderError:
        return int(path.stem) if path.stem.isdecimal() else -1


def _walk(data: bytes, base: Position) -> Iterator[tuple[Header, bytes]]:
    """The whole batches in the bytes of a segment."""
    at = SEGMENT_HEADER_BYTES
    while at < len(data):
        header = read_header(data[at : at + HEADER_BYTES])
        position = base + at - SEGMENT_HEADER_BYTES
        if header and header.base_position == position:
            payload = data[at + HEADER_BYTES : at + header.total_bytes]
            if is_whole(header, payload):
                yield header, payload
                at += header.total_bytes
                continue
        following = next_header(data[at:], position)
        if following is None:
            return
        at += following.base_position - position


class SoundWriter:
    """Writes batches as the segments of a new log."""

    def __init__(self, directory: DataDirectory, shard: int) -> None:
        self._directory = directory
        self._shard = shard
        self._source: Segment | None = None
        self.end = START
        self.ranges: list[tuple[Position, Position]] = []  # What was written.

    def write(self, batches: Iterable[Sound]) -> Iterator[Sound]:
        """Write batches, and pass them on."""
        file = None
        try:
            for sound in batches:
                if file is None or sound.header.start != self.end or sound.segment != self._source:
                    if file:
                        _finish(file)
                    file = self._begin(sound.header.start, sound.segment.created or sound.header.time)
                    self._source = sound.segment
                file.write(sound.data)
                self.end = sound.header.end
                self.ranges[-1] = (self.ranges[-1][0], self.end.position)
                yield sound
        finally:
            if file:
                _finish(file)

    def close_at(self, end: Point, name: int, now: Nanos) -> None:
        """Let the log go on here: what follows the last batch is lost. `name`: a number that no name has."""
        if end != self.end or not self.ranges:
            continue_log(self._directory.log, self._shard, end, (name, "salvaged"), now)
        sync(self._directory.log)

    def _begin(self, start: Point, created: Nanos) -> BinaryIO:
        path = segment_path(self._directory.log, start.offset)
        file = create_private(path)
        file.write(Segment(path, self._shard, *start, created).header())
        self.ranges.append((start.position, start.position))
        return file


def _finish(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
    file.close()
