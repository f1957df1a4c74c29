"""A log in PostgreSQL with local segments as a copy: a commit is durable when its batch is in the store.

What it guarantees: batches of one shard have numbers without a gap, and each was appended by whoever owned the shard
then. An append names its epoch and the number before its own; the statement changes nothing if either is not true any
more. So an owner that was deposed, however late it wakes, can add nothing.

Why so: the lease says who may serve and is about time, which may be wrong; the epoch in the statement is about order,
which cannot be (ADR 40). The copy only saves reading: what it lacks is fetched, what contradicts the store is fetched
again.

What would break it: to append again when the outcome is not known (the first may be in); to acknowledge what only
the copy has; to read from a standby; to go on with a connection whose wait for a standby was cancelled, because the
commit is local then.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock

from penstock.errors import DamagedExtentError, DamagedLogError, LogFailedError
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.directory import DataDirectory
from penstock.storage.log.batch import START, Point
from penstock.storage.log.parts import Part, part_at
from penstock.storage.log.segment import Segment
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.snapshot import read_facts, read_snapshot, remove_unfinished, snapshot_path
from penstock.storage.log.writer import Job, Writer
from penstock.storage.port import Recovered, Section
from penstock.storage.postgres.cache import (
    BatchCheck,
    CachedSegment,
    Fetches,
    cached_segment,
    clear_old,
    fetch_segment,
    fetch_snapshot,
    is_copy,
    is_whole_copy,
    pieces_of,
)
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.shard import Ownership, Shard, StoredPart, StoredSnapshot

logger = logging.getLogger(__name__)

_SNAPSHOTS_KEPT = 2  # The newest, and a spare in case it turns out damaged.


class StoredLog(SegmentLog):
    """Owned by an epoch. Its connections fail when the lease is lost, and so does the log."""

    _writer: StoreWriter

    def __init__(
        self,
        directory: DataDirectory,
        connect: Callable[[], Connection],
        shard: Shard,
        owned: Ownership,
        *,
        segment_bytes: int,
    ) -> None:
        super().__init__(directory, segment_bytes=segment_bytes, shard=shard.number)
        self._connect = connect
        self._shard = shard
        self._fetches = Fetches(self._fetch)
        self._turn = Lock()  # Of those who fetch.
        self._fetching: Connection | None = None
        self._owned = owned
        self._is_over = False  # Another log has the directory, or may have it soon.
        self._stored_end = START
        self._parts: dict[int, StoredPart] = {}  # Those of earlier owners, by their first offset.
        self._fetched_again: set[int] = set()  # Those whose copy was damaged.
        self._stored: list[StoredSnapshot] = []  # As `snapshots`.
        self._writing = connect()
        removed: deque[Callable[[Shard], None]] = deque()
        self._removed = removed
        self._writer = StoreWriter(
            segment_bytes, shard.on(self._writing), owned.last_batch, directory.log, self.segments, removed
        )

    # ── Recovery ────────────────────────────────────────────────────────────────────────────────────────────

    def recover(self) -> Recovered:
        remove_unfinished(self.directory.snapshots)
        with self._connected() as shard:
            for unfinished in shard.unfinished_snapshots():
                shard.drop_snapshot(unfinished)
            parts, snapshots = shard.parts(), shard.snapshots()
            clear_old(self.directory, parts, snapshots)
            newest = self._newest_snapshot(shard, snapshots)
            known = self.snapshots[0].point if self.snapshots else START
            self.end = self._stored_end = self._fetch_tail(shard, parts, known)
        return Recovered(read_snapshot(newest) if newest else None, self._replay(known))

    def _check_replayed(self) -> None:
        """What is appended goes where the store ends, whatever became of the copy meanwhile."""
        if self.end != self._stored_end:
            raise DamagedLogError(
                f"the copy in {self.directory.log} ends at offset {self.end.offset}, and the store at"
                f" {self._stored_end.offset}; something else has changed its files"
            )

    @contextmanager
    def _connected(self) -> Iterator[Shard]:
        """The shard on a connection for a while: a node may have many shards, and PostgreSQL few connections."""
        with closing(self._connect()) as connection:
            yield self._shard.on(connection)

    def _newest_snapshot(self, shard: Shard, snapshots: list[StoredSnapshot]) -> Path | None:
        """The newest snapshot that is whole. The one after it is a spare, which is not fetched."""
        for index, snapshot in enumerate(snapshots):
            try:
                path = fetch_snapshot(shard, self.directory.snapshots, snapshot)
            except DamagedLogError as error:
                logger.error("snapshot_damaged", extra={"offset": snapshot.offset, "reason": str(error)})
                continue
            self.snapshots, self._stored = [read_facts(path)], snapshots[index : index + _SNAPSHOTS_KEPT]
            for other in [*snapshots[:index], *snapshots[index + _SNAPSHOTS_KEPT :]]:
                shard.drop_snapshot(other)
            return path
        return None

    def _fetch_tail(self, shard: Shard, parts: list[StoredPart], known: Point) -> Point:
        """Have the segments that are replayed, checked; older ones are fetched when they are read. Returns where the
        log ends."""
        end, epoch, number = known, 0, self._owned.last_batch
        for index, part in enumerate(parts):
            segment = cached_segment(self.directory.log, shard.number, part, self._fetch)
            self.segments.append(segment)
            self._parts[part.base_offset] = part
            following = parts[index + 1] if index + 1 < len(parts) else None
            if following and following.base_offset <= known.offset:
                continue
            if part.base_offset > end.offset:
                raise DamagedLogError(f"events {end.offset} to {part.base_offset - 1} are missing in the store")
            segment.is_checked = True
            if following and is_whole_copy(segment, part, following, shard):
                end, number = following.start, following.first_batch - 1
                continue
            check = BatchCheck(part, known, epoch)
            fetch_segment(shard, segment, check.data(shard.batches(part.base_offset)))
            end, epoch, number = check.end, check.epoch, check.next_number - 1
        self._check_end(end, number, epoch, known)
        return end

    def _check_end(self, end: Point, number: int, epoch: int, known: Point) -> None:
        last = self._owned.last_batch
        if number != last:
            raise DamagedLogError(
                f"the store has lost batches {number + 1} to {last} at its end: events from offset {end.offset} on."
                " Restore it from a backup of PostgreSQL"
            )
        if end.offset < known.offset or epoch > self._owned.epoch:
            raise DamagedLogError(f"the store ends at offset {end.offset}, before its snapshot of {known.offset}")

    def _fetch(self, segment: CachedSegment) -> None:
        """Fetch an older segment, for any thread."""
        part = self._parts[segment.base_offset]
        with self._turn:
            if self._is_over:
                raise LogFailedError("this part of the log was not fetched before the log was closed")
            if segment not in self.segments:
                raise FileNotFoundError(f"{segment} was removed")
            if not segment.is_here:
                self._make_here(segment, part, self._shard.on(self._connection_to_fetch()))

    def _make_here(self, segment: CachedSegment, part: StoredPart, shard: Shard) -> None:
        if not is_copy(segment, part, shard):
            check = BatchCheck(part, self.end)  # A snapshot covers all of it.
            fetch_segment(shard, segment, check.data(shard.batches(part.base_offset)))
            logger.info("segment_fetched", extra={"first_offset": part.base_offset})
        segment.is_checked = True

    def _connection_to_fetch(self) -> Connection:
        if self._fetching is None or self._fetching.is_over:
            self._fetching = self._connect()
        return self._fetching

    # ── Reading and space ───────────────────────────────────────────────────────────────────────────────────

    def require(self, position: Position) -> None:
        segment = self._copy_at(position)
        if segment and not segment.is_here:
            raise self._fetches.begin(segment)

    def _copy_at(self, position: Position) -> CachedSegment | None:
        index = part_at(self.segments, position)
        segment = self.segments[index] if index >= 0 else None
        return segment if isinstance(segment, CachedSegment) else None

    def _read_block(self, position: Position, size: int) -> bytes:
        self.require(position)
        try:
            return super()._read_block(position, size)
        except DamagedExtentError:
            segment = self._copy_at(position)
            if segment is None or not self._may_fetch_again(segment):
                raise
            self._checked.forget(segment)
            segment.path.unlink()  # The copy may be damaged, and the store not.
            raise self._fetches.begin(segment) from None

    def _may_fetch_again(self, segment: CachedSegment) -> bool:
        if segment.end_position is None or segment.base_offset in self._fetched_again:
            return False
        self._fetched_again.add(segment.base_offset)
        return True

    def begin_snapshot(self) -> Point:
        self._writer.part_ends = True
        return self.appended

    def write_snapshot(self, sections: Iterable[Section], at: Point, time: Nanos) -> None:
        super().write_snapshot(sections, at, time)
        unfinished = snapshot_path(self.directory.snapshots, at.offset).with_suffix(".tmp")
        with unfinished.open("rb") as file, self._connected() as shard:  # A child must not use those of its parent.
            shard.write_snapshot(at.offset, pieces_of(file))

    def publish_snapshot(self, offset: int) -> None:
        with self._connected() as shard:
            shard.publish_snapshot(offset)
        super().publish_snapshot(offset)
        self._stored.insert(0, StoredSnapshot(offset, self._shard.epoch, self.snapshots[0].bytes))
        for old in self._stored[_SNAPSHOTS_KEPT:]:
            self._removed.append(lambda shard, old=old: shard.drop_snapshot(old))  # type: ignore[misc]
        del self._stored[_SNAPSHOTS_KEPT:]

    def remove(self, part: Part) -> None:
        super().remove(part)
        self._removed.append(lambda shard, first=part.base_offset: shard.drop_part(first))  # type: ignore[misc]

    # ── The end ─────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        super().close()
        self._writing.close()
        self._end_fetches()

    def abandon(self) -> None:
        self._writing.drop()  # Or the thread that writes might wait for an answer without end.
        self._end_fetches()
        super().abandon()

    def _end_fetches(self) -> None:
        """Readers may have this log still. Nothing is written to the directory for them any more."""
        self._fetches.close()
        if self._fetching:
            self._fetching.drop()  # Then a fetch that is under way fails.
        with self._turn:
            self._is_over = True
            if self._fetching:
                self._fetching.close()


class StoreWriter(Writer):
    """Writes each batch to the local segment, which need not be synced, and to the store, which makes it durable."""

    def __init__(
        self,
        segment_bytes: int,
        shard: Shard,
        last_batch: int,
        directory: Path,
        segments: list[Segment],
        removed: deque[Callable[[Shard], None]],
    ) -> None:
        """`removed`: what is to be removed from the store, before the next commit."""
        super().__init__(segment_bytes, shard.number, directory, segments)
        self._store = shard
        self._number = last_batch
        self._end: Position = 0  # Of the batch with that number.
        self._removed = removed
        self.part_ends = False  # The next batch begins a new part.

    def start(self, position: Position) -> None:
        self._end = position
        super().start(position)

    def _commit(self, job: Job) -> None:
        assert job.start.position == self._end, "a batch follows the one before it"
        while self._removed:
            self._removed.popleft()(self._store)
        self._write(job)
        self._store.append(self._segments[-1].base_offset, self._number + 1, job.start, job.data)
        self._number += 1
        self._end += len(job.data)
        job.progress(Stage.WRITE)

    def _is_full(self, used: int, job: Job) -> bool:
        return self.part_ends or super()._is_full(used, job)

    def _begin(self, job: Job) -> Segment:
        self.part_ends = False
        self._store.begin_part(job.start, job.now, self._number + 1)
        return super()._begin(job)

    def _sync(self, file: int) -> None:
        """The store has it."""
