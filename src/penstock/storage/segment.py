"""One segment file: a header, then batches, then (in the newest one) room reserved as zeros.

A segment is named by the offset of its first record. Its header repeats that and says where in the log its first
batch stands; positions run on from segment to segment without a gap.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import BinaryIO, NamedTuple

from crc32c import crc32c

from penstock.errors import DamagedLogError
from penstock.model import Nanos, Position
from penstock.storage.batch import HEADER_BYTES, MAGIC, Header, is_whole, read_header

SEGMENT_MAGIC = b"PSEG"
SEGMENT_FORMAT = 1
_SEGMENT_HEADER = Struct("<4sHHQQq28xI")
SEGMENT_HEADER_BYTES = _SEGMENT_HEADER.size
assert SEGMENT_HEADER_BYTES == 64


class Segment(NamedTuple):
    path: Path
    shard: int
    base_offset: int
    base_position: Position  # Of the first batch.
    created: Nanos

    def file_offset(self, position: Position) -> int:
        return SEGMENT_HEADER_BYTES + position - self.base_position

    def header(self) -> bytes:
        facts = (SEGMENT_MAGIC, SEGMENT_FORMAT, self.shard, self.base_offset, self.base_position, self.created)
        data = _SEGMENT_HEADER.pack(*facts, 0)[:-4]
        return data + crc32c(data).to_bytes(4, "little")


class Damage(NamedTuple):
    """Where a segment stops making sense."""

    file_offset: int
    next_offset: int  # The first offset that cannot be read.
    resumes_at: int | None  # The offset of a later batch that is whole; None: nothing whole follows.


class Found(NamedTuple):
    """A batch in a segment."""

    file_offset: int
    header: Header
    payload: bytes


def segment_path(directory: Path, base_offset: int) -> Path:
    return directory / f"{base_offset:020d}.log"


def is_segment_header(data: bytes) -> bool:
    whole = len(data) == SEGMENT_HEADER_BYTES and data[:4] == SEGMENT_MAGIC
    return whole and crc32c(data[:-4]) == int.from_bytes(data[-4:], "little")


def open_segment(path: Path) -> Segment:
    with path.open("rb") as file:
        data = file.read(SEGMENT_HEADER_BYTES)
    if not is_segment_header(data):
        raise DamagedLogError(
            f"{path}: the segment header is damaged: events {path.stem.lstrip('0') or '0'} and later"
        )
    _, number, shard, base_offset, base_position, created, _ = _SEGMENT_HEADER.unpack(data)
    if number != SEGMENT_FORMAT:
        raise DamagedLogError(f"{path} has format {number}; this version reads format {SEGMENT_FORMAT}")
    if path.name != segment_path(path.parent, base_offset).name:
        raise DamagedLogError(f"{path}: the header says that it begins with offset {base_offset}")
    return Segment(path, shard, base_offset, base_position, created)


def in_segments(segments: Sequence[Segment], position: Position) -> bool:
    """Does one of them hold this position? The last one goes on without end."""
    index = bisect_right(segments, position, key=lambda segment: segment.base_position) - 1
    if index < 0 or index == len(segments) - 1:
        return index >= 0
    segment = segments[index]
    return segment.file_offset(position) < segment.path.stat().st_size  # Behind it there may be a hole.


class SegmentReader:
    """Walks the batches of a segment. After the walk: where it ended, and whether anything is wrong there."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.next_offset = segment.base_offset
        self.end = SEGMENT_HEADER_BYTES  # File offset behind the last whole batch.
        self.damage: Damage | None = None

    @property
    def end_position(self) -> Position:
        return self.segment.base_position + self.end - SEGMENT_HEADER_BYTES

    def batches(self) -> Iterator[Found]:
        with self.segment.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(self.end)
            while found := self._next(file):
                self.next_offset += found.header.records
                self.end += found.header.total_bytes
                yield found
            if self.end < size:
                file.seek(self.end)
                self._judge(file.read())

    def _next(self, file: BinaryIO) -> Found | None:
        header = read_header(file.read(HEADER_BYTES))
        if header is None or not self._stands_at(header, self.end) or header.base_offset != self.next_offset:
            return None
        payload = file.read(header.total_bytes - HEADER_BYTES)
        return Found(self.end, header, payload) if is_whole(header, payload) else None

    def _stands_at(self, header: Header, file_offset: int) -> bool:
        return header.base_position == self.segment.base_position + file_offset - SEGMENT_HEADER_BYTES

    def _judge(self, rest: bytes) -> None:
        """Zeros are reserved room. Anything else is a torn batch, or damage if something whole follows it."""
        if not rest.strip(b"\0"):
            return
        resumes_at = None
        at = rest.find(MAGIC, 1)
        while at >= 0 and resumes_at is None:
            header = read_header(rest[at : at + HEADER_BYTES])
            if header and self._stands_at(header, self.end + at):
                resumes_at = header.base_offset
            at = rest.find(MAGIC, at + 1)
        self.damage = Damage(self.end, self.next_offset, resumes_at)
