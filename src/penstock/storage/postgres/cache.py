"""The local copy of a log in PostgreSQL: segments and snapshots as in any data directory, fetched when needed.

A finished segment that has the size and the last batch that it has in the store is taken as it is: its batches have
checksums. That is looked up when it is first read, because there may be thousands. The newest segment is fetched at
every start. After a reboot nothing is taken, because nothing here is synced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from penstock.errors import DamagedLogError
from penstock.model.values import Position
from penstock.storage.directory import DataDirectory, create_private
from penstock.storage.log.batch import HEADER_BYTES, Point, is_whole, read_header
from penstock.storage.log.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentFile,
    SegmentReader,
    segment_path,
    segment_paths,
)
from penstock.storage.log.snapshot import check_snapshot, list_snapshots, snapshot_path
from penstock.storage.port import BeingFetchedError
from penstock.storage.postgres.connection import MissingTableError
from penstock.storage.postgres.shard import PIECE_BYTES, Shard, StoredBatch, StoredPart, StoredSnapshot

logger = logging.getLogger(__name__)

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class CachedSegment(Segment):
    """A segment whose file is checked or fetched when it is first read."""

    fetch: Callable[[CachedSegment], None]
    end_position: Position | None
    is_checked = False  # Its file, if it is there, is the same as in the store.

    @property
    def is_here(self) -> bool:
        return self.is_checked and self.path.exists()

    def end(self) -> Position:
        return super().end() if self.end_position is None else self.end_position

    def open(self) -> SegmentFile:
        if not self.is_here:
            self.fetch(self)
        return SegmentFile(self)


class Fetches:
    """Fetches segments for a reader that must not wait, one at a time."""

    def __init__(self, fetch: Callable[[CachedSegment], None]) -> None:
        self._fetch = fetch
        self._thread = ThreadPoolExecutor(1, "log-fetch")
        self._under_way: dict[int, Future[None]] = {}  # By first offset.

    def begin(self, segment: CachedSegment) -> BeingFetchedError:
        """Fetch a segment unless that is under way. Returns the error for its reader."""
        fetch = self._under_way.get(segment.base_offset)
        if fetch is None or fetch.done():
            fetch = self._under_way[segment.base_offset] = self._thread.submit(self._fetch, segment)
        return BeingFetchedError(fetch)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def cached_segment(
    directory: Path, shard: int, part: StoredPart, fetch: Callable[[CachedSegment], None]
) -> CachedSegment:
    path = segment_path(directory, part.base_offset)
    segment = CachedSegment(path, shard, part.base_offset, part.base_position, part.created)
    segment.fetch, segment.end_position = fetch, part.end_position
    return segment


def clear_old(directory: DataDirectory, parts: list[StoredPart], snapshots: list[StoredSnapshot]) -> None:
    """Remove what cannot be the same as in the store."""
    marker = directory.path / "boot"
    same_boot = _boot() and marker.exists() and marker.read_text() == _boot()
    good = {segment_path(directory.log, part.base_offset): part for part in parts}
    for path in segment_paths(directory.log):
        if path in good and good[path].end_position is None:
            continue  # It is fetched anew, and is there for readers until then.
        if not same_boot or path not in good:
            path.unlink()
    offsets = {snapshot_path(directory.snapshots, each.offset): each.bytes for each in snapshots}
    for path in list_snapshots(directory.snapshots):
        if not same_boot or path.stat().st_size != offsets.get(path):
            path.unlink()
    mark_boot(directory)


def mark_boot(directory: DataDirectory) -> None:
    """From now on files here are the same as in the store, until the machine is started again."""
    (directory.path / "boot").write_text(_boot())


def _boot() -> str:
    return _BOOT.read_text() if _BOOT.exists() else ""


def is_copy(segment: Segment, part: StoredPart, shard: Shard) -> bool:
    """Whether the file of a finished segment is there, with the size and the last batch that the part has. An owner
    that was replaced may have another batch at the end, and only there."""
    if part.end_position is None or not segment.path.exists():
        return False
    size = SEGMENT_HEADER_BYTES + part.end_position - part.base_position
    with segment.path.open("rb") as file:
        if segment.path.stat().st_size != size or file.read(SEGMENT_HEADER_BYTES) != segment.header():
            return False
        with _unless_removed(segment, shard):
            position, header = shard.last_header(part.base_offset)
        file.seek(segment.file_offset(position))
        return file.read(HEADER_BYTES) == header


def is_whole_copy(segment: Segment, part: StoredPart, following: StoredPart, shard: Shard) -> bool:
    """The same for a segment that is replayed: each batch of it is whole, up to where the next part begins."""
    if not is_copy(segment, part, shard):
        return False
    reader = SegmentReader(segment)
    for _ in reader.batches():
        pass
    return reader.damage is None and reader.end_point == following.start


def fetch_snapshot(shard: Shard, directory: Path, snapshot: StoredSnapshot) -> Path:
    """The file of a snapshot, whole. Raises `DamagedLogError`."""
    path = snapshot_path(directory, snapshot.offset)
    if not path.exists():
        _write(path, shard.pieces(snapshot))
    try:
        check_snapshot(path)
    except DamagedLogError:
        path.unlink()
        raise
    return path


def fetch_segment(shard: Shard, segment: Segment, checked: Iterator[bytes]) -> None:
    """Write the file of a segment."""
    with _unless_removed(segment, shard):
        _write(segment.path, checked, segment.header())


@contextmanager
def _unless_removed(segment: Segment, shard: Shard) -> Iterator[None]:
    try:
        yield
    except MissingTableError:
        raise FileNotFoundError(f"{segment} was removed from shard {shard.number}") from None


def _write(path: Path, pieces: Iterator[bytes], header: bytes = b"") -> None:
    temporary = path.with_suffix(".fetched")
    with create_private(temporary) as file:
        file.write(header)
        for data in pieces:
            file.write(data)
    temporary.rename(path)


def pieces_of(file: BinaryIO) -> Iterator[bytes]:
    while data := file.read(PIECE_BYTES):
        yield data


class BatchCheck:
    """Reads the batches of a part, and refuses what cannot be the log that was acknowledged.

    Batches that the newest snapshot covers may be damaged or missing: their place in the file is kept, and their
    messages are set aside when they are read."""

    def __init__(self, part: StoredPart, known: Point, epoch: int = 0) -> None:
        self.part = part
        self.next_number = part.first_batch
        self.end = part.start
        self.epoch = epoch  # Of the batch before.
        self._known = known

    def data(self, batches: Iterator[StoredBatch]) -> Iterator[bytes]:
        for batch in batches:
            if batch.base_position < self.end.position:
                raise DamagedLogError(f"batch {batch.number} overlaps the one before it")
            missing = batch.base_position - self.end.position
            if missing or batch.number != self.next_number:
                self._check_known(batch.base_offset, f"batches {self.next_number} to {batch.number - 1} are missing")
                yield bytes(missing)
            yield self._checked(batch)

    def _checked(self, batch: StoredBatch) -> bytes:
        header = read_header(batch.data)
        stands = header is not None and header.start == (batch.base_offset, batch.base_position)
        if header and stands and is_whole(header, batch.data[HEADER_BYTES:]) and batch.epoch >= self.epoch:
            self.end = header.end
        else:
            why = "is of an older epoch than the one before it" if batch.epoch < self.epoch else "is damaged"
            end = header.end.offset if header and stands else self._known.offset
            self._check_known(max(end, batch.base_offset + 1), f"batch {batch.number} {why}")
            self.end = Point(batch.base_offset, batch.base_position + len(batch.data))
        self.epoch = max(self.epoch, batch.epoch)
        self.next_number = batch.number + 1
        return batch.data

    def _check_known(self, end_offset: int, what: str) -> None:
        if end_offset > self._known.offset:
            raise DamagedLogError(
                f"{what}: events from offset {self.end.offset} on. The store has lost what was acknowledged; restore"
                " it from a backup of PostgreSQL"
            )
