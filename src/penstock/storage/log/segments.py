"""The log on disk, in segments: collects batches, hands them to the writer, and reads them back."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator

from penstock.errors import LogFailedError
from penstock.limits import TAIL_BYTES_MAX
from penstock.model.events import Event
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.directory import DataDirectory, sync
from penstock.storage.log.batch import START, Point
from penstock.storage.log.checked import CheckedSegments
from penstock.storage.log.encode import Batch
from penstock.storage.log.index import PartIndexes
from penstock.storage.log.parts import Part, holds
from penstock.storage.log.recovery import open_segments, replay, whole_snapshots
from penstock.storage.log.segment import Segment
from penstock.storage.log.snapshot import (
    publish_snapshot,
    read_snapshot,
    remove_unfinished,
    snapshot_path,
    write_snapshot,
)
from penstock.storage.log.view import View
from penstock.storage.log.writer import Job, Writer
from penstock.storage.port import Progress, Recovered, Section, SnapshotFacts

_READ_AHEAD_BYTES = 128 << 10
_TAIL_BATCHES_MAX = 4096
_SNAPSHOTS_KEPT = 2  # The newest, and a spare in case it turns out damaged.


class SegmentLog:
    def __init__(self, directory: DataDirectory, *, segment_bytes: int, shard: int = 0) -> None:
        self.directory = directory
        self.segments: list[Segment] = []
        self.snapshots: list[SnapshotFacts] = []  # Newest first.
        self.end = START  # Everything before it is on the disk.
        self._collect(Batch(*START))
        self._tail = _Tail()
        self._indexes = PartIndexes()
        self._checked = CheckedSegments(self.segments)
        self._block_base: Position = 0  # What was read last.
        self._block = b""
        self._writer = Writer(segment_bytes, shard, directory.log, self.segments)
        self._committing = False
        self._failed: BaseException | None = None

    def recover(self) -> Recovered:
        remove_unfinished(self.directory.snapshots)
        snapshots = whole_snapshots(self.directory.snapshots)
        self.snapshots = list(snapshots.values())
        known = self.snapshots[0].point if self.snapshots else START
        self.segments[:] = open_segments(self.directory.log, known)
        return Recovered(read_snapshot(next(iter(snapshots))) if snapshots else None, self._replay(known))

    def _replay(self, known: Point) -> Iterator[tuple[Event, Position]]:
        self.end = yield from replay(self.segments, known, self._checked.note_gaps)
        self._check_replayed()
        self._collect(Batch(*self.end))
        self._writer.start(self.end.position)

    def _check_replayed(self) -> None:
        """Whoever knows better where the log ends refuses to go on elsewhere."""

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
        start, end = Point(batch.base_offset, batch.base_position), batch.end
        self._tail.add(start.position, data)
        self._collect(Batch(*end))
        self._committing = True

        def report(stage: Stage | BaseException) -> None:
            if isinstance(stage, BaseException):
                self._failed = stage
            elif stage is Stage.SYNC:
                self.end = end
                self._committing = False
            progress(stage)

        self._writer.jobs.put(Job(data, start, now, report))

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def start(self) -> Point:
        return self.segments[0].start if self.segments else self.end

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

    def require(self, position: Position) -> None:
        """Everything is here, unless it is a copy."""

    def holds(self, position: Position) -> bool:
        return holds(self.segments, position)

    def _read_block(self, position: Position, size: int) -> bytes:
        """From the batches still in memory, or from the disk. Messages mostly leave in the order in which they came:
        so what was read last is kept, and reading forward reads more than was asked for."""
        recent = self._tail.find(position)
        if recent is None:
            ahead = 0 <= position - self._block_base - len(self._block) < _READ_AHEAD_BYTES
            most = _READ_AHEAD_BYTES if ahead else 0
            recent = (position, self._checked.read(position, size, most, self.end.position))
        self._block_base, self._block = recent
        start = position - self._block_base
        return self._block[start : start + size]

    @property
    def damaged(self) -> list[tuple[Position, Position]]:
        return self._checked.damaged

    # ── Space ───────────────────────────────────────────────────────────────────────────────────────────────

    def begin_snapshot(self) -> Point:
        return self.appended

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
        self._checked.forget(segment)
        segment.path.unlink(missing_ok=True)  # A copy of what is stored elsewhere may not be there.
        for torn in self.directory.log.glob("*.torn"):
            if torn.name.partition(".")[0] < self.segments[0].path.stem:
                torn.unlink()

    def close(self) -> None:
        self._writer.stop()
        self._checked.close()

    def abandon(self) -> None:
        self.close()
        for segment in reversed(self.segments):
            if segment.base_position >= self.end.position and segment.base_offset:
                segment.path.unlink(missing_ok=True)
            else:
                os.truncate(segment.path, segment.file_offset(self.end.position))
                break
        sync(self.directory.log)  # Or a segment cut off here could return with the next power cut.


class _Tail:
    """The newest batches, kept in memory: a message that is taken soon after it came costs no disk read."""

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
