"""Inspect a data directory without taking it: everything is read and checked, nothing is written or repaired.

The rules are those of a start, which cuts a torn tail and refuses damage.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator
from enum import IntEnum
from operator import attrgetter
from pathlib import Path
from struct import Struct as Layout

import msgspec
import numpy as np

from penstock.errors import DamagedHeaderError, DamagedLogError, DataDirectoryError
from penstock.model.events import Event
from penstock.model.values import Nanos, Position
from penstock.storage.directory import DataDirectory
from penstock.storage.letters.forms import grouped
from penstock.storage.letters.table import table_of
from penstock.storage.log.batch import RECORD_DTYPE, START, Header, Point, extent_bounds
from penstock.storage.log.decode import events_of
from penstock.storage.log.segment import (
    SEGMENT_HEADER_BYTES,
    Found,
    Gap,
    Segment,
    SegmentReader,
    is_unborn,
    open_segment,
    segment_paths,
    segment_without_header,
)
from penstock.storage.log.snapshot import check_snapshot, list_snapshots, read_facts, read_snapshot
from penstock.storage.port import Section, SnapshotFacts

Advance = Callable[[int], None]  # Called with the number of bytes read since the last call.

_FLOCK = Layout("hhqqi4x")  # struct flock: type, whence, start, length, process.
_TRIES = 5


class Severity(IntEnum):
    WHOLE = 0
    TORN = 1  # The last commit was not finished and nothing in it was acknowledged: the next start cuts it off.
    DAMAGED = 2  # Something that was whole has changed.


class Problem(msgspec.Struct, frozen=True):
    severity: Severity
    text: str
    path: str
    byte: int | None = None
    first_lost: int | None = None  # Offsets.
    last_lost: int | None = None
    stops: bool = True  # Whether damage stops a start. It does not if a snapshot covers it.


class SnapshotReport(msgspec.Struct, frozen=True):
    path: str
    bytes: int
    offset: int | None = None
    time: Nanos | None = None
    problem: str | None = None  # None: whole.
    position: Position = 0


class SegmentReport(msgspec.Struct, kw_only=True):
    path: str
    first_offset: int
    next_offset: int
    base_position: Position
    end_position: Position
    batches: int = 0
    records: int = 0
    events: int = 0  # Letters: a record has one, several or none.
    bytes_used: int = 0
    bytes_reserved: int = 0
    first_time: Nanos | None = None
    last_time: Nanos | None = None
    letters: dict[str, int] = {}


class Report(msgspec.Struct, kw_only=True):
    """What a data directory holds, and what is wrong with it."""

    directory: str
    format: int
    shard: int
    ancestors: list[int] = []  # Offsets where the log went on from another one, which may be that of shard 0.
    held_by: int | None  # The process that serves the directory. Then the log may change while it is read.
    snapshots: list[SnapshotReport] = []  # Newest first.
    segments: list[SegmentReport] = []
    holes: list[tuple[int, int]] = []  # The first and the last offset of each stretch that compaction has removed.
    leftovers: list[str] = []  # Files that no start reads: cut tails and unfinished snapshots.
    problems: list[Problem] = []
    damaged: list[tuple[Position, Position]] = []  # Unreadable ranges of the log that the snapshot covers.

    @property
    def starts(self) -> bool:
        """Would a broker start?"""
        return not any(problem.stops for problem in self.problems if problem.severity is Severity.DAMAGED)

    @property
    def severity(self) -> Severity:
        return max((problem.severity for problem in self.problems), default=Severity.WHOLE)

    @property
    def snapshot(self) -> SnapshotReport | None:
        """The snapshot that a start would use."""
        return next((snapshot for snapshot in self.snapshots if snapshot.problem is None), None)

    @property
    def covered(self) -> int:
        """The snapshot holds all events before this offset."""
        return self.snapshot.offset or 0 if self.snapshot else 0

    @property
    def known(self) -> Point:
        return Point(self.covered, self.snapshot.position) if self.snapshot else START


def holder(directory: Path) -> int | None:
    """The process that serves a directory. It must not call this itself: closing the file would release its lock."""
    try:
        file = os.open(directory / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else int(process)
    finally:
        os.close(file)


def bytes_to_read(directory: DataDirectory) -> int:
    return sum(path.stat().st_size for path in [*segment_paths(directory.log), *list_snapshots(directory.snapshots)])


def scan(directory: DataDirectory, advance: Advance = lambda _: None) -> Report:
    """Read and check every byte of the log and the snapshots."""
    identity = directory.read_identity()
    for _ in range(_TRIES):
        report = Report(
            directory=str(directory.path),
            format=identity.format,
            shard=identity.shard,
            ancestors=[end for _, end in identity.lineage],
            held_by=holder(directory.path),
        )
        try:
            _scan(directory, report, advance)
            return report
        except FileNotFoundError:
            continue  # Compaction has removed a file: list them again.
    raise DataDirectoryError(f"{directory.path} changes faster than it can be read; try again")


def newest_snapshot(directory: DataDirectory) -> tuple[SnapshotFacts, Iterator[Section]] | None:
    """The snapshot that a start would use, found without reading the log."""
    for path in list_snapshots(directory.snapshots):
        try:
            check_snapshot(path)
            return read_facts(path), read_snapshot(path)
        except DamagedLogError:
            continue
    return None


def replay(directory: DataDirectory, report: Report) -> Iterator[tuple[int, Event, Position]]:
    """The events that a start would replay after the snapshot, each with its offset and position."""
    start = report.covered
    end = report.segments[-1].next_offset if report.segments else start  # The log may have grown since the scan.
    for header, payload in batches(directory, start, report.known):
        for offset, (event, position) in enumerate(events_of(header, payload), start=header.base_offset):
            if start <= offset < end:
                yield offset, event, position


def batches(directory: DataDirectory, start: int, known: Point = START) -> Iterator[tuple[Header, bytes]]:
    """Every batch that can be read and has events at `start` or later. Damage is skipped if a snapshot covers it."""
    paths = segment_paths(directory.log)
    for index, path in enumerate(paths):
        if index + 1 < len(paths) and int(paths[index + 1].stem) <= start:
            continue
        try:
            for _, header, payload in SegmentReader(open_segment(path), known).batches():
                if header.end.offset > start:
                    yield header, payload
        except DamagedLogError:
            continue  # `scan` reports what is wrong with it.


# ── The scan ──────────────────────────────────────────────────────────────────────────────────────────────


def _scan(directory: DataDirectory, report: Report, advance: Advance) -> None:
    paths = segment_paths(directory.log)
    report.leftovers = [str(path) for path in _leftovers(directory)]
    for path in list_snapshots(directory.snapshots):
        report.snapshots.append(_read_snapshot(path, report))
        advance(path.stat().st_size)
    end: Point | None = START  # Where the log was read to: the next segment begins there, or after a hole.
    for path, following in zip(paths, [*paths[1:], None], strict=False):
        end = _scan_segment(path, following, report, end, advance)
    covered = report.covered
    if end and end.offset < covered:
        text = f"events {end.offset} to {covered - 1} are missing: the log ends before its snapshot"
        where = paths[-1] if paths else directory.log
        report.problems.append(_damage(where, text, lost=(end.offset, covered - 1)))


def _read_snapshot(path: Path, report: Report) -> SnapshotReport:
    size = path.stat().st_size
    try:
        facts = read_facts(path)
        check_snapshot(path)
    except DamagedLogError as error:
        report.problems.append(_damage(path, _without_path(path, error)))
        return SnapshotReport(str(path), size, problem=_without_path(path, error))
    return SnapshotReport(str(path), size, facts.offset, facts.time, position=facts.position)


def _scan_segment(
    path: Path, following: Path | None, report: Report, end: Point | None, advance: Advance
) -> Point | None:
    """Check one segment. Returns where it ends, or None if that is unknown."""
    last = following is None
    try:
        segment = _opened(path, following, report)
    except DamagedLogError as error:
        if last and is_unborn(path):
            text = "a crash while this segment was created left it without a header; it never held an event"
            report.problems.append(Problem(Severity.TORN, text, str(path), 0))
            return end
        report.problems.append(_damage(path, _without_path(path, error), byte=0))
        return None
    is_older = segment.shard == 0 and segment.base_offset < max(report.ancestors, default=0)
    if segment.shard != report.shard and not is_older:
        text = f"it belongs to shard {segment.shard}, the directory to shard {report.shard}"
        report.problems.append(_damage(path, text, byte=0))
    _check_chain(segment, report, end)
    found = SegmentReport(
        path=str(path),
        first_offset=segment.base_offset,
        next_offset=segment.base_offset,
        base_position=segment.base_position,
        end_position=segment.base_position,
        bytes_reserved=path.stat().st_size,
    )
    report.segments.append(found)
    reader = SegmentReader(segment, _known(segment, following, report))
    problem = _read_batches(reader, found, advance) or _judge(reader, last=last)
    for gap in reader.gaps:
        report.damaged.append((gap.start, gap.end))
        report.problems.append(_gap(segment, gap))
    found.next_offset, found.end_position, found.bytes_used = reader.next_offset, reader.end_position, reader.end
    advance(found.bytes_reserved - reader.end + SEGMENT_HEADER_BYTES)
    if problem:
        report.problems.append(problem)
        if problem.severity is Severity.DAMAGED:
            return None
    return reader.end_point


def _opened(path: Path, following: Path | None, report: Report) -> Segment:
    """A segment that is not replayed may have lost its header."""
    try:
        return open_segment(path)
    except DamagedHeaderError as error:
        if following is None or int(following.stem) > report.covered:
            raise
        text = f"{_without_path(path, error).partition(':')[0]}; a broker starts without it"
        report.problems.append(Problem(Severity.DAMAGED, text, str(path), 0, stops=False))
        return segment_without_header(path, open_segment(following))


def _known(segment: Segment, following: Path | None, report: Report) -> Point:
    """The point up to which a start does not need the events of a segment."""
    if following is None or int(following.stem) > report.covered:
        return report.known
    return Point(int(following.stem), segment.end())


def _gap(segment: Segment, gap: Gap) -> Problem:
    lost = (gap.first_offset, gap.end_offset - 1)
    text = f"events {lost[0]} to {lost[1]} cannot be read; a snapshot covers them, so a broker starts"
    return Problem(Severity.DAMAGED, text, str(segment.path), segment.file_offset(gap.start), *lost, stops=False)


def _check_chain(segment: Segment, report: Report, end: Point | None) -> None:
    if end is None or segment.start == end:
        return
    if segment.base_offset in report.ancestors and segment.base_position > end.position:
        return  # Here begins a shard that was made from this log: what is before it is not for readers.
    lost = (end.offset, segment.base_offset - 1)
    if segment.base_offset <= end.offset or segment.base_position < end.position:
        text = (
            f"it begins with offset {segment.base_offset} at position {segment.base_position}, "
            f"but the log before it ends with offset {end.offset} at position {end.position}"
        )
        report.problems.append(_damage(segment.path, text, byte=0))
    elif segment.base_offset > report.covered:
        text = f"events {lost[0]} to {lost[1]} are missing before this segment: no whole snapshot covers them"
        report.problems.append(_damage(segment.path, text, byte=0, lost=lost))
    else:
        report.holes.append(lost)


def _read_batches(reader: SegmentReader, found: SegmentReport, advance: Advance) -> Problem | None:
    group: list[Found] = []
    try:
        for group in grouped(reader.batches(), attrgetter("header")):
            _count(group, found)
            advance(sum([batch.header.total_bytes for batch in group]))
            group = []
    except DamagedLogError as error:
        return _damage(reader.segment.path, str(error), byte=group[0].file_offset if group else reader.end)
    return None


def _count(group: list[Found], found: SegmentReport) -> None:
    """Add some batches to the report. A batch whose records do not fit its heap is damaged."""
    joined = b"".join([payload[header.heap_bytes :] for _, header, payload in group])
    records = np.frombuffer(joined, dtype=RECORD_DTYPE)
    ends = np.cumsum([header.records for _, header, _ in group])
    extents = np.diff(extent_bounds(records)[ends], prepend=0)
    for wrong in np.flatnonzero(extents != [header.heap_bytes for _, header, _ in group]).tolist():
        raise DamagedLogError(
            f"the batch at byte {group[wrong].file_offset}: its heap has {group[wrong].header.heap_bytes} bytes, "
            f"but its records add up to {extents[wrong]}"
        )
    letters = table_of([(header, payload) for _, header, payload in group]).objects("letter")
    found.letters = dict(Counter(found.letters) + Counter(letters))
    found.batches += len(group)
    found.records += len(records)
    found.events += len(letters)
    if found.first_time is None:
        found.first_time = int(records["time"][0])
    found.last_time = int(records["time"][-1])


def _judge(reader: SegmentReader, *, last: bool) -> Problem | None:
    """By the rule of a start: a bad tail is torn, a bad middle is damage."""
    damage, path = reader.damage, reader.segment.path
    if damage is None:
        return None
    first = damage.next_offset
    if last and damage.resumes_at is None and first >= reader.known.offset:
        text = f"torn tail: what follows byte {damage.file_offset} is not a whole batch; the next start will cut it"
        return Problem(Severity.TORN, text, str(path), damage.file_offset)
    end = damage.resumes_at
    if end is None and last:
        end = reader.known.offset
    if end is None:
        paths = segment_paths(path.parent)
        end = int(paths[paths.index(path) + 1].stem)
    text = f"events {first} to {end - 1} cannot be read"
    return _damage(path, text, byte=damage.file_offset, lost=(first, end - 1))


def _damage(path: Path, text: str, *, byte: int | None = None, lost: tuple[int, int] | None = None) -> Problem:
    return Problem(Severity.DAMAGED, text, str(path), byte, *(lost or ()))


def _without_path(path: Path, error: DamagedLogError) -> str:
    return str(error).removeprefix(f"{path}: ")


def _leftovers(directory: DataDirectory) -> list[Path]:
    return sorted([*directory.log.glob("*.torn"), *directory.snapshots.glob("*.tmp")])
