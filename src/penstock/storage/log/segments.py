"""The log on disk: segments, group commit, recovery. One thread writes and syncs, one batch at a time."""

from __future__ import annotations

import logging
import os
import threading
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from penstock.errors import DamagedExtentError, DamagedHeaderError, DamagedLogError, LogFailedError
from penstock.limits import TAIL_BYTES_MAX
from penstock.model.events import Event
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.directory import DataDirectory, sync
from penstock.storage.log.decode import events_of
from penstock.storage.log.encode import Batch
from penstock.storage.log.index import PartIndexes
from penstock.storage.log.parts import Part, Point
from penstock.storage.log.segment import (
    SEGMENT_HEADER_BYTES,
    Damage,
    Gap,
    Known,
    Segment,
    SegmentReader,
    gaps_of,
    in_segments,
    is_segment_header,
    open_segment,
    segment_path,
    segment_without_header,
)
from penstock.storage.log.snapshot import (
    check_snapshot,
    list_snapshots,
    publish_snapshot,
    read_facts,
    read_snapshot,
    remove_unfinished,
    snapshot_path,
    write_snapshot,
)
from penstock.storage.log.view import View
from penstock.storage.port import Progress, Recovered, Section, SnapshotFacts

logger = logging.getLogger(__name__)

_OPEN_FILES_MAX = 128
_READ_AHEAD_BYTES = 128 << 10
_TAIL_BATCHES_MAX = 4096
_SNAPSHOTS_KEPT = 2  # The newest, and a spare in case it turns out damaged.


class _Job(NamedTuple):
    data: bytes
    base_offset: int
    base_position: Position
    now: Nanos
    progress: Progress


class SegmentLog:
    def __init__(self, directory: DataDirectory, *, segment_bytes: int, shard: int = 0) -> None:
        self.directory = directory
        self.shard = shard
        self.segments: list[Segment] = []
        self.snapshots: list[SnapshotFacts] = []  # Newest first.
        self.end = Point(0, 0)  # Everything before it is on the disk.
        self._segment_bytes = segment_bytes
        self._collect(Batch(0, 0))
        self._tail = _Tail()
        self._indexes = PartIndexes()
        self._files = _Files()
        self._block_base: Position = 0  # What was read last.
        self._block = b""
        self._checked: set[int] = set()  # Finished segments that were read whole, by their first offset.
        self._gaps: dict[int, list[Gap]] = {}  # What is damaged in each, by the same.
        self._writer = _Writer(segment_bytes, shard, directory.log, self.segments)
        self._committing = False
        self._failed: BaseException | None = None

    # ── Recovery ────────────────────────────────────────────────────────────────────────────────────────────

    def recover(self) -> Recovered:
        remove_unfinished(self.directory.snapshots)
        self._drop_unborn_segment()
        snapshots = self._whole_snapshots()
        self.snapshots = list(snapshots.values())
        newest = self.snapshots[0] if self.snapshots else None
        known = Known(newest.offset, newest.position) if newest else Known()
        self.segments[:] = _open_segments(sorted(self.directory.log.glob("*.log")), known.offset)
        if self.segments:
            sync(self.segments[-1].path)  # What is read may have been written and never synced.
        self._check_start(known.offset)
        return Recovered(read_snapshot(next(iter(snapshots))) if snapshots else None, self._replay(known))

    def _drop_unborn_segment(self) -> None:
        """A crash while a segment was made leaves a file without a header: it never held anything."""
        paths = sorted(self.directory.log.glob("*.log"))
        if paths:
            with paths[-1].open("rb") as file:
                born = is_segment_header(file.read(SEGMENT_HEADER_BYTES)) or file.read().strip(b"\0")
            if not born:
                paths[-1].unlink()

    def _whole_snapshots(self) -> dict[Path, SnapshotFacts]:
        whole: dict[Path, SnapshotFacts] = {}
        for path in list_snapshots(self.directory.snapshots):
            try:
                if not whole:  # Only the one that is used is read now; the other one is a spare.
                    check_snapshot(path)
                whole[path] = read_facts(path)
            except DamagedLogError as error:
                logger.error("snapshot_damaged", extra={"path": str(path), "reason": str(error)})
        return whole

    def _check_start(self, start: int) -> None:
        """The log must reach back to where the snapshot ends."""
        if self.segments and not any(segment.base_offset <= start for segment in self.segments):
            first = self.segments[0].base_offset
            raise DamagedLogError(f"events {start} to {first - 1} are missing: no snapshot covers them")
        if not self.segments and start:
            raise DamagedLogError(f"the log is gone: a snapshot says that it reached offset {start}")

    def _replay(self, known: Known) -> Iterator[tuple[Event, Position]]:
        start = known.offset
        next_offset, next_position = known
        for index, segment in enumerate(self.segments):
            last = index == len(self.segments) - 1
            if not last and self.segments[index + 1].base_offset <= start:
                continue
            reader = SegmentReader(segment, known)
            for _, header, payload in reader.batches():
                offset = header.base_offset
                if offset + header.records <= start:
                    continue
                for event, position in events_of(header, payload):
                    if offset >= start:
                        yield event, position
                    offset += 1
            if reader.damage:
                self._mend(reader, reader.damage, last=last)
            self._note_gaps(segment, reader.gaps)
            next_offset, next_position = reader.next_offset, reader.end_position
            if not last and self.segments[index + 1].base_offset != next_offset:
                missing = f"{next_offset} to {self.segments[index + 1].base_offset - 1}"
                raise DamagedLogError(f"{segment.path}: events {missing} are missing at its end")
        if next_offset < start:
            raise DamagedLogError(
                f"events {next_offset} to {start - 1} are missing: the log ends before its snapshot"
            )
        self._begin_at(next_offset, next_position)

    def _mend(self, reader: SegmentReader, damage: Damage, *, last: bool) -> None:
        """A bad tail is torn: cut it and say so. A bad middle is damage: stop and name what is lost."""
        path = reader.segment.path
        if not last or damage.resumes_at is not None or damage.next_offset < reader.known.offset:
            until = f"to {damage.resumes_at - 1}" if damage.resumes_at is not None else "and later"
            raise DamagedLogError(
                f"{path}: damaged at byte {damage.file_offset}: events {damage.next_offset} {until}"
            )
        torn = cut_tail(path, damage.file_offset)
        logger.warning(
            "torn_tail_cut",
            extra={"path": str(path), "at_byte": damage.file_offset, "bytes": torn, "offset": damage.next_offset},
        )

    def _begin_at(self, offset: int, position: Position) -> None:
        self.end = Point(offset, position)
        self._collect(Batch(offset, position))
        self._writer.start(position)

    # ── Appending ───────────────────────────────────────────────────────────────────────────────────────────

    def _collect(self, batch: Batch) -> None:
        self._batch = batch
        self.append = batch.add  # The port's call, without one in between.

    @property
    def collecting(self) -> int:
        return self._batch.size

    @property
    def appended(self) -> Point:
        return self._batch.appended

    def commit(self, now: Nanos, progress: Progress) -> None:
        if self._failed:
            raise LogFailedError("the log has failed") from self._failed
        assert not self._committing, "one commit at a time"
        batch = self._batch
        data = batch.seal(now)
        self._tail.add(batch.base_position, data)
        end = batch.end
        self._collect(Batch(*end))
        self._committing = True

        def report(stage: Stage | BaseException) -> None:
            if isinstance(stage, BaseException):
                self._failed = stage
            elif stage is Stage.SYNC:
                self.end = end
                self._committing = False
            progress(stage)

        self._writer.jobs.put(_Job(data, batch.base_offset, batch.base_position, now, report))

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def start(self) -> Point:
        return Point(*self.segments[0][2:4]) if self.segments else self.end

    def view(self) -> View:
        end = self.end  # Read once: another thread moves it.
        segments = tuple([segment for segment in self.segments if segment.base_position < end.position])
        return View(segments, end, self._indexes)

    def read(self, position: Position, size: int) -> bytes:
        start = position - self._block_base
        if start >= 0 and start + size <= len(self._block):
            return self._block[start : start + size]
        if position >= self._batch.base_position:
            return self._batch.read(position, size)
        return self._read_block(position, size)

    def holds(self, position: Position) -> bool:
        """Is what stands there still in the log?"""
        return in_segments(self.segments, position)

    def _read_block(self, position: Position, size: int) -> bytes:
        """From the batches still in memory, or from the disk. Messages leave mostly in the order in which they came:
        so what was read last is kept, and where a reader goes forward, it is more than was asked for."""
        recent = self._tail.find(position)
        if recent is None:
            ahead = 0 <= position - self._block_base - len(self._block) < _READ_AHEAD_BYTES
            recent = (position, self._read_disk(position, size, _READ_AHEAD_BYTES if ahead else 0))
        self._block_base, self._block = recent
        start = position - self._block_base
        return self._block[start : start + size]

    def _read_disk(self, position: Position, size: int, ahead: int) -> bytes:
        index = bisect_right(self.segments, position, key=lambda segment: segment.base_position) - 1
        if index < 0:
            first = self.segments[0].base_position if self.segments else position + size
            raise DamagedExtentError(f"no segment holds position {position}", [(0, first)])
        segment = self.segments[index]
        if segment.base_offset not in self._checked and segment is not self.segments[-1]:
            self._check(segment, self.segments[index + 1])
        # Nothing beyond what is durable, which may still be written, and nothing damaged.
        wanted = max(size, min(ahead, self.end.position - position))
        if gaps := self._gaps.get(segment.base_offset):
            wanted = _before_gaps(segment, gaps, position, size, wanted)
        try:
            data = self._files.read(segment, segment.file_offset(position), wanted)
        except OSError as error:  # It was readable when it was checked.
            text = f"{segment.path}: position {position} cannot be read: {error}"
            raise DamagedExtentError(text, [(position, position + size)]) from error
        if len(data) < size:
            raise self._missing(index, position)
        return data

    def _missing(self, index: int, position: Position) -> DamagedExtentError:
        """A position after the end of its segment: the one that held it is gone."""
        segment, following = self.segments[index], self.segments[index + 1 : index + 2]
        until = following[0].base_position if following else self.end.position
        return DamagedExtentError(f"no segment holds position {position}", [(segment.end(), until)])

    def _check(self, segment: Segment, following: Segment) -> None:
        """Read a finished segment whole, once, before the first message is taken from it: recovery reads only what
        the snapshot does not cover, and a wrong body must not go out as a right one."""
        self._note_gaps(segment, gaps_of(segment, following))
        self._checked.add(segment.base_offset)

    def _note_gaps(self, segment: Segment, gaps: list[Gap]) -> None:
        """Remember what is damaged, and log each part of it once."""
        for gap in gaps:
            if gap not in self._gaps.get(segment.base_offset, ()):
                logger.critical(
                    "batch_damaged",
                    extra={
                        "path": str(segment.path),
                        "at_byte": segment.file_offset(gap.start),
                        "bytes": gap.end - gap.start,
                        "first_offset": gap.first_offset,
                        "last_offset": gap.end_offset - 1,
                    },
                )
        if gaps:
            self._gaps[segment.base_offset] = gaps

    @property
    def damaged(self) -> list[tuple[Position, Position]]:
        """The parts of the log that are known to be damaged."""
        return [(gap.start, gap.end) for gaps in self._gaps.values() for gap in gaps]

    # ── Space ───────────────────────────────────────────────────────────────────────────────────────────────

    def write_snapshot(self, sections: Iterable[Section], at: Point, time: Nanos) -> None:
        write_snapshot(self.directory.snapshots, sections, at, time)

    def publish_snapshot(self, offset: int) -> None:
        self.snapshots.insert(0, publish_snapshot(self.directory.snapshots, offset))
        for old in self.snapshots[_SNAPSHOTS_KEPT:]:
            snapshot_path(self.directory.snapshots, old.offset).unlink(missing_ok=True)
        del self.snapshots[_SNAPSHOTS_KEPT:]

    def remove(self, part: Part) -> None:
        segment = next(segment for segment in self.segments if segment == part)
        assert segment is not self.segments[-1], "the newest segment is being written"
        self.segments.remove(segment)
        self._checked.discard(segment.base_offset)
        self._gaps.pop(segment.base_offset, None)
        self._files.close(segment)
        segment.path.unlink()

    def close(self) -> None:
        self._writer.stop()
        self._files.close_all()

    def abandon(self) -> None:
        """After a failure: close, and cut off whatever was not known to be durable. Nobody was told of it."""
        self.close()
        for segment in reversed(self.segments):
            if segment.base_position >= self.end.position and segment.base_offset:
                segment.path.unlink(missing_ok=True)
            else:
                os.truncate(segment.path, segment.file_offset(self.end.position))
                break
        sync(self.directory.log)  # Or a segment cut off here could return with the next power cut.


def _open_segments(paths: list[Path], start: int) -> list[Segment]:
    """All of them. One that a start does not replay may have lost its header."""
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


def _before_gaps(segment: Segment, gaps: list[Gap], position: Position, size: int, wanted: int) -> int:
    """As many of the wanted bytes as stand before the next gap. Raises if one lies in those that must be read."""
    index = bisect_right(gaps, position, key=lambda gap: gap.end)
    if index < len(gaps) and gaps[index].start < position + wanted:
        gap = gaps[index]
        if gap.start < position + size:
            text = (
                f"{segment.path}: damaged at byte {segment.file_offset(gap.start)}: "
                f"events {gap.first_offset} to {gap.end_offset - 1}"
            )
            raise DamagedExtentError(text, [(each.start, each.end) for each in gaps])
        return gap.start - position
    return wanted


class _Writer:
    """The thread that owns the newest segment: writes, syncs, and begins the next one when it is full."""

    def __init__(self, segment_bytes: int, shard: int, directory: Path, segments: list[Segment]) -> None:
        self.jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._segment_bytes = segment_bytes
        self._shard = shard
        self._directory = directory
        self._segments = segments
        self._file: int | None = None
        self._thread: threading.Thread | None = None

    def start(self, position: Position) -> None:
        if self._segments:
            segment = self._segments[-1]
            self._file = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
            self._reserve(self._file, segment.file_offset(position))
            os.fsync(self._file)
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._thread:
            self.jobs.put(None)
            self._thread.join()
            self._thread = None
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _run(self) -> None:
        while job := self.jobs.get():
            try:
                self._write(job)
                job.progress(Stage.WRITE)
                assert self._file is not None
                os.fdatasync(self._file)
            except Exception as error:
                # Never tried again: after a failed fsync the kernel may call lost pages clean. And whatever else ends
                # this thread must not leave the others waiting for it.
                job.progress(error)
                return
            job.progress(Stage.SYNC)

    def _write(self, job: _Job) -> None:
        segment = self._segments[-1] if self._segments else None
        at = segment.file_offset(job.base_position) if segment else 0
        if segment is None or (at > SEGMENT_HEADER_BYTES and at + len(job.data) > self._segment_bytes):
            self._finish(at)
            segment = self._begin(job)
            at = segment.file_offset(job.base_position)
        assert self._file is not None
        view = memoryview(job.data)
        while view:
            written = os.pwrite(self._file, view, at)
            at += written
            view = view[written:]

    def _begin(self, job: _Job) -> Segment:
        path = segment_path(self._directory, job.base_offset)
        segment = Segment(path, self._shard, job.base_offset, job.base_position, job.now)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._reserve(self._file, 0)
        os.pwrite(self._file, segment.header(), 0)
        os.fsync(self._file)
        sync(self._directory)
        self._segments.append(segment)
        return segment

    def _reserve(self, file: int, used: int) -> None:
        """Room reserved in advance makes fdatasync twice as fast: the file's size does not change with each batch."""
        if used < self._segment_bytes:
            os.posix_fallocate(file, used, self._segment_bytes - used)

    def _finish(self, end: int) -> None:
        if self._file is not None:
            os.ftruncate(self._file, end)
            os.fsync(self._file)
            os.close(self._file)
            self._file = None


class _Tail:
    """The newest batches, kept in memory for readers: what is taken soon after it came costs no disk read."""

    def __init__(self) -> None:
        self._bases: deque[Position] = deque()
        self._batches: deque[bytes] = deque()
        self._bytes = 0

    def add(self, base_position: Position, data: bytes) -> None:
        self._bases.append(base_position)
        self._batches.append(data)
        self._bytes += len(data)
        while (self._bytes > TAIL_BYTES_MAX or len(self._batches) > _TAIL_BATCHES_MAX) and len(self._batches) > 1:
            self._bases.popleft()
            self._bytes -= len(self._batches.popleft())

    def find(self, position: Position) -> tuple[Position, bytes] | None:
        """The batch that holds a position, and where it begins."""
        if not self._bases or position < self._bases[0]:
            return None
        index = bisect_right(self._bases, position) - 1
        return self._bases[index], self._batches[index]


class _Files:
    """Segments open for reading, the least recently read one closed first."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, int] = OrderedDict()

    def read(self, segment: Segment, at: int, size: int) -> bytes:
        file = self._open.get(segment.base_offset)
        if file is None:
            file = self._open[segment.base_offset] = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open) > _OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(segment.base_offset)
        return os.pread(file, size, at)

    def close(self, segment: Segment) -> None:
        file = self._open.pop(segment.base_offset, None)
        if file is not None:
            os.close(file)

    def close_all(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])


def cut_tail(path: Path, end: int) -> int:
    """Cut a torn tail off a segment, keeping the bytes beside it; how many there were."""
    with path.open("r+b") as file:
        file.seek(end)
        torn = file.read().rstrip(b"\0")
        path.with_suffix(f".{end}.torn").write_bytes(torn)
        file.truncate(end)
        os.fsync(file.fileno())
    return len(torn)
