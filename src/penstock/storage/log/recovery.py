"""Recovery: what a start finds in a data directory, mended where that is safe.

A bad tail of the newest segment is a commit that a crash has torn. No client has an answer for it, so it is cut.
Damage anywhere else stops the start, unless a snapshot covers the damaged events.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator
from pathlib import Path

from penstock.errors import DamagedHeaderError, DamagedLogError
from penstock.model.events import Event
from penstock.model.values import Position
from penstock.storage.directory import create_private, sync
from penstock.storage.log.batch import Point
from penstock.storage.log.decode import events_of
from penstock.storage.log.segment import (
    Damage,
    Gap,
    Segment,
    SegmentReader,
    is_unborn,
    open_segment,
    segment_paths,
    segment_without_header,
)
from penstock.storage.log.snapshot import check_snapshot, list_snapshots, read_facts
from penstock.storage.port import SnapshotFacts

logger = logging.getLogger(__name__)

NoteGaps = Callable[[Segment, list[Gap]], None]


def whole_snapshots(directory: Path) -> dict[Path, SnapshotFacts]:
    """The snapshots that can be used, newest first."""
    whole: dict[Path, SnapshotFacts] = {}
    for path in list_snapshots(directory):
        try:
            if not whole:  # Only the one that is used is read now; the other one is a spare.
                check_snapshot(path)
            whole[path] = read_facts(path)
        except DamagedLogError as error:
            logger.error("snapshot_damaged", extra={"path": str(path), "reason": str(error)})
    return whole


def open_segments(directory: Path, known: Point) -> list[Segment]:
    """All segments of a log whose events before `known` are in a snapshot."""
    paths = segment_paths(directory)
    if paths and is_unborn(paths[-1]):
        paths.pop().unlink()
    segments = _open_all(paths, known.offset)
    if segments:
        sync(segments[-1].path)  # What is read may have been written and never synced.
        first = segments[0].base_offset
        if first > known.offset:
            raise DamagedLogError(f"events {known.offset} to {first - 1} are missing: no snapshot covers them")
    elif known.offset:
        raise DamagedLogError(f"the log is gone: a snapshot says that it reached offset {known.offset}")
    return segments


def _open_all(paths: list[Path], start: int) -> list[Segment]:
    """A segment that is not replayed, because it ends before `start`, may have lost its header."""
    segments: list[Segment] = []  # The newest first.
    for path in reversed(paths):
        try:
            segments.append(open_segment(path))
        except DamagedHeaderError as error:
            if not segments or segments[-1].base_offset > start:
                raise
            logger.critical("segment_header_damaged", extra={"path": str(path), "reason": str(error)})
            segments.append(segment_without_header(path, segments[-1]))
    return segments[::-1]


def replay(
    segments: list[Segment], known: Point, note_gaps: NoteGaps
) -> Generator[tuple[Event, Position], None, Point]:
    """The events that are not known from a snapshot, with their positions; returns where the log ends."""
    start, end = known.offset, known
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if not last and segments[index + 1].base_offset <= start:
            continue
        reader = SegmentReader(segment, known)
        for _, header, payload in reader.batches():
            offset = header.base_offset
            if header.end.offset <= start:
                continue
            for event, position in events_of(header, payload):
                if offset >= start:
                    yield event, position
                offset += 1
        if reader.damage:
            _mend(reader, reader.damage, last=last)
        note_gaps(segment, reader.gaps)
        end = reader.end_point
        if not last and segments[index + 1].base_offset != end.offset:
            missing = f"{end.offset} to {segments[index + 1].base_offset - 1}"
            raise DamagedLogError(f"{segment}: events {missing} are missing at its end")
    if end.offset < start:
        raise DamagedLogError(f"events {end.offset} to {start - 1} are missing: the log ends before its snapshot")
    return end


def _mend(reader: SegmentReader, damage: Damage, *, last: bool) -> None:
    """A bad tail is torn: cut it and log that. A bad middle is damage: stop and name what is lost."""
    path = reader.segment.path
    if not last or damage.resumes_at is not None or damage.next_offset < reader.known.offset:
        until = f"to {damage.resumes_at - 1}" if damage.resumes_at is not None else "and later"
        raise DamagedLogError(f"{path}: damaged at byte {damage.file_offset}: events {damage.next_offset} {until}")
    torn = cut_tail(path, damage.file_offset)
    logger.warning(
        "torn_tail_cut",
        extra={"path": str(path), "at_byte": damage.file_offset, "bytes": torn, "offset": damage.next_offset},
    )


def cut_tail(path: Path, end: int) -> int:
    """Cut a torn tail off a segment, keeping the bytes in a file beside it; how many there were."""
    with path.open("r+b") as file:
        file.seek(end)
        torn = file.read().rstrip(b"\0")
        with create_private(path.with_suffix(f".{end}.torn")) as aside:
            aside.write(torn)
        file.truncate(end)
        os.fsync(file.fileno())
    return len(torn)
