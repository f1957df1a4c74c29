"""One segment file: a header, then batches, then (in the newest one) reserved space, which is zeros.

A segment is named by the offset of its first record. Its header has that offset and the position of its first batch.
Positions continue from segment to segment without a gap.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO, NamedTuple

from crc32c import crc32c

from penstock.errors import DamagedHeaderError, DamagedLogError
from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import HEADER_BYTES, START, Header, Point, is_whole, read_header
from penstock.storage.log.parts import next_header

SEGMENT_MAGIC = b"PSEG"
SEGMENT_FORMAT = 1
_SEGMENT_HEADER = Struct("<4sHHQQq28xI")
SEGMENT_HEADER_BYTES = _SEGMENT_HEADER.size
assert SEGMENT_HEADER_BYTES == 64
_READ_BYTES = 1 << 20  # At a time: after each read a thread waits for its turn, if others are busy.
_SECTOR_BYTES = 4096  # The unit in which a disk can or cannot be read.


class Segment(NamedTuple):
    """A part of the log (`Part`) that is one file."""

    path: Path
    shard: int
    base_offset: int
    base_position: Position  # Of the first batch.
    created: Nanos

    def __str__(self) -> str:
        return str(self.path)

    @property
    def start(self) -> Point:
        return Point(self.base_offset, self.base_position)

    def end(self) -> Position:
        """Where a finished segment ends: it is cut to its last batch."""
        return self.base_position + os.stat(self.path).st_size - SEGMENT_HEADER_BYTES

    def open(self) -> SegmentFile:
        return SegmentFile(self)

    def file_offset(self, position: Position) -> int:
        return SEGMENT_HEADER_BYTES + position - self.base_position

    def header(self) -> bytes:
        facts = (SEGMENT_MAGIC, SEGMENT_FORMAT, self.shard, self.base_offset, self.base_position, self.created)
        data = _SEGMENT_HEADER.pack(*facts, 0)[:-4]
        return data + crc32c(data).to_bytes(4, "little")


class SegmentFile:
    """A segment open for reading (`PartFile`)."""

    def __init__(self, segment: Segment) -> None:
        self._file = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
        self._base = segment.base_position - SEGMENT_HEADER_BYTES

    def read(self, position: Position, size: int) -> bytes:
        return os.pread(self._file, size, position - self._base)

    def end(self) -> Position:
        return self._base + os.fstat(self._file).st_size

    def close(self) -> None:
        os.close(self._file)


class Damage(NamedTuple):
    """Where a segment can no longer be read."""

    file_offset: int
    next_offset: int  # The first offset that cannot be read.
    resumes_at: int | None  # The offset of a later batch that is whole; None: nothing whole follows.


class Gap(NamedTuple):
    """A damaged stretch of a segment, from the start of a batch to the start of the next one that can be read."""

    start: Position
    end: Position
    first_offset: int
    end_offset: int


class Found(NamedTuple):
    """A batch in a segment."""

    file_offset: int
    header: Header
    payload: bytes


def segment_paths(directory: Path) -> list[Path]:
    """The segments of a log, oldest first."""
    return sorted(directory.glob("*.log"))


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"


def is_segment_header(data: bytes) -> bool:
    whole = len(data) == SEGMENT_HEADER_BYTES and data[:4] == SEGMENT_MAGIC
    return whole and crc32c(data[:-4]) == int.from_bytes(data[-4:], "little")


def is_unborn(path: Path) -> bool:
    """A crash while a segment is made leaves a file without a header, which never held anything."""
    with path.open("rb") as file:
        return not is_segment_header(file.read(SEGMENT_HEADER_BYTES)) and not file.read().strip(b"\0")


def open_segment(path: Path) -> Segment:
    segment = read_segment(path)
    if path.name != segment_path(path.parent, segment.base_offset).name:
        raise DamagedLogError(f"{path}: its header has another first offset ({segment.base_offset}) than its name")
    return segment


def read_segment(path: Path) -> Segment:
    """What the header of a segment says, whatever the name of the file is."""
    with path.open("rb") as file:
        data = readable(file, 0, SEGMENT_HEADER_BYTES)
    if not is_segment_header(data):
        raise DamagedHeaderError(
            f"{path}: the segment header is damaged: events {path.stem.lstrip('0') or '0'} and later"
        )
    _, number, shard, base_offset, base_position, created, _ = _SEGMENT_HEADER.unpack(data)
    if number != SEGMENT_FORMAT:
        raise DamagedLogError(f"{path} has format {number}; this version reads format {SEGMENT_FORMAT}")
    return Segment(path, shard, base_offset, base_position, created)


def segment_without_header(path: Path, following: Segment) -> Segment:
    """A finished segment whose header is damaged: its name, its batches and the next segment have the same facts."""
    with path.open("rb") as file:
        first = read_header(readable(file, SEGMENT_HEADER_BYTES, HEADER_BYTES))
    base_offset = int(path.stem)
    if first and first.base_offset == base_offset:
        base_position = first.base_position
    else:
        base_position = following.base_position - path.stat().st_size + SEGMENT_HEADER_BYTES
    return Segment(path, following.shard, base_offset, base_position, following.created)


class SegmentReader:
    """Reads the batches of a segment in order. Then it knows where they end, and whether there is damage.

    A damaged batch ends the walk, unless its events are known from elsewhere, which is so before the point `known`:
    then it is noted in `gaps` and skipped.
    """

    def __init__(self, segment: Segment, known: Point = START) -> None:
        self.segment = segment
        self.known = known
        self.next_offset = segment.base_offset
        self.end = SEGMENT_HEADER_BYTES  # File offset after the last whole batch.
        self.damage: Damage | None = None
        self.gaps: list[Gap] = []

    @property
    def end_position(self) -> Position:
        return self._position(self.end)

    @property
    def end_point(self) -> Point:
        return Point(self.next_offset, self.end_position)

    def batches(self) -> Iterator[Found]:
        with self.segment.path.open("rb", buffering=_READ_BYTES) as file:
            size = os.fstat(file.fileno()).st_size
            while True:
                while found := self._next(file):
                    self.next_offset += found.header.records
                    self.end += found.header.total_bytes
                    yield found
                if self.end >= size or not self._skips_gap(file, size):
                    return

    def _next(self, file: BinaryIO) -> Found | None:
        header = read_header(readable(file, self.end, HEADER_BYTES))
        if header is None or not self._stands_at(header, self.end) or header.base_offset != self.next_offset:
            return None
        payload = readable(file, self.end + HEADER_BYTES, header.total_bytes - HEADER_BYTES)
        return Found(self.end, header, payload) if is_whole(header, payload) else None

    def _stands_at(self, header: Header, file_offset: int) -> bool:
        return header.base_position == self._position(file_offset)

    def _position(self, file_offset: int) -> Position:
        return self.segment.base_position + file_offset - SEGMENT_HEADER_BYTES

    def _skips_gap(self, file: BinaryIO, size: int) -> bool:
        """Whether reading can continue after the bytes at this position. Zeros are reserved space. Anything else is a
        torn batch, or damage if a whole batch follows, or only a gap if its events are known."""
        rest = readable(file, self.end, size - self.end)
        if self.next_offset < self.known.offset and (resumes := self._known_end(rest)):
            end, offset = resumes
            self.gaps.append(Gap(self.end_position, self._position(end), self.next_offset, offset))
            self.end, self.next_offset = end, offset
            return True
        if rest.strip(b"\0"):
            following = self._following(rest)
            self.damage = Damage(self.end, self.next_offset, following[1] if following else None)
        return False

    def _known_end(self, rest: bytes) -> tuple[int, int] | None:
        """The file offset and the offset where the damage ends, if all events before that are known."""
        header = read_header(rest[:HEADER_BYTES])
        stands = header and self._stands_at(header, self.end) and header.base_offset == self.next_offset
        if header and stands and header.total_bytes <= len(rest):  # Only its payload is damaged.
            offset = header.end.offset
            return (self.end + header.total_bytes, offset) if offset <= self.known.offset else None
        following = self._following(rest)
        if following and following[1] <= self.known.offset:
            return following
        at = self.segment.file_offset(self.known.position)
        covered = self.end < at <= self.end + len(rest) and not rest[at - self.end :].strip(b"\0")
        return (at, self.known.offset) if covered else None

    def _following(self, rest: bytes) -> tuple[int, int] | None:
        """The file offset and the offset of the next batch whose header is at its own position."""
        header = next_header(rest, self.end_position)
        return (self.segment.file_offset(header.base_position), header.base_offset) if header else None


def readable(file: BinaryIO, at: int, size: int) -> bytes:
    """Bytes of a file. What the disk cannot read is zeros, so that the checksum of their batch does not match."""
    try:
        file.seek(at)
        return file.read(size)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        if size <= _SECTOR_BYTES:
            return bytes(size)
        half = size // 2
        return readable(file, at, half) + readable(file, at + half, size - half)


def gaps_of(segment: Segment, following: Segment) -> list[Gap]:
    """The gaps of a finished segment, which another one follows."""
    reader = SegmentReader(segment, Point(following.base_offset, segment.end()))
    for _ in reader.batches():
        pass
    return reader.gaps
