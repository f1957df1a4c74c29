"""Moves the logs of a data directory into a store and back. Message ids stay valid: the key moves with the logs.

An import is a transaction a shard, because one for all would need more locks than PostgreSQL has. It may be cut off
and run again: until it has ended, no broker uses the store.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from penstock.errors import DataDirectoryError, InUseError
from penstock.storage.directory import DataDirectory, Identity, lock_holder, sync, take_lock, write_durably
from penstock.storage.log.batch import START, Point, read_header
from penstock.storage.log.segment import Segment, SegmentReader
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.snapshot import snapshot_path
from penstock.storage.postgres.cache import mark_boot, pieces_of
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.log import StoredLog
from penstock.storage.postgres.schema import begin_import, end_import, imported, set_identity, version_of
from penstock.storage.postgres.shard import Shard, StoredBatch
from penstock.storage.shards import Shards, check_shard, read_shards, shard_directory

Advance = Callable[[int], None]  # Called with the number of bytes copied since the last call.


def import_store(connection: Connection, path: Path, advance: Advance = lambda _: None) -> list[Point]:
    """Copy all logs of a data directory, which nobody serves, into a new store. After that the directory is a copy of
    the store. Returns where the logs end."""
    stored = read_shards(path)
    directories = [shard_directory(path, each) for each in range(stored.shards)] if stored else [DataDirectory(path)]
    identities = [directory.read_identity() for directory in directories]
    _check(path, stored, identities)
    is_resumed = version_of(connection) < 0
    pairs = list(zip(directories, identities, strict=True))
    with ExitStack() as locks:
        if stored:
            locks.callback(os.close, _lock(path))
        for directory, identity in pairs:
            is_copy = is_resumed and (directory.path / "owner").exists()
            directory.open(identity if is_copy else None)
            locks.callback(directory.close)
        begin_import(connection, identities, stored.elsewhere if stored else {})
        ends = [_import(connection, directory, identity, advance) for directory, identity in pairs]
    for directory, identity in pairs:
        _make_copy(directory, identity)
    if stored:
        _make_node(path, identities[0])
    end_import(connection)
    (path / "shards.json").unlink(missing_ok=True)
    return ends


def _check(path: Path, stored: Shards | None, identities: list[Identity]) -> None:
    if stored is None and identities[0].shards > 1 and not (path / "owner").exists():
        raise DataDirectoryError(
            f"{path} is one of {identities[0].shards} shards; import the directory with all of them"
        )
    if stored:
        for number in range(stored.shards):
            check_shard(shard_directory(path, number), stored.identity(number))


def log_paths(path: Path) -> list[Path]:
    """The files with the logs of a data directory."""
    return [*path.glob("log/*.log"), *path.glob("shards/*/log/*.log")]


def _lock(path: Path) -> int:
    """Nobody serves the shards meanwhile."""
    lock = take_lock(path / "lock")
    if lock is None:
        raise InUseError(f"{path} is in use by {lock_holder(path / 'lock')}. Stop that process first")
    return lock


def _import(connection: Connection, directory: DataDirectory, identity: Identity, advance: Advance) -> Point:
    """Copy a log, unless an earlier run has copied just this."""
    if (directory.path / "owner").exists() and imported(connection, identity.shard) == identity:
        return _end(connection, identity.shard)
    log = _recovered(directory, identity)
    with connection.transaction():
        if imported(connection, identity.shard) == identity and _end(connection, identity.shard) == log.end:
            return log.end
        _clear(connection, identity.shard)
        _copy(connection, log, identity.shard, advance)
        set_identity(connection, identity)
    return log.end


def _clear(connection: Connection, number: int) -> None:
    """Remove what an earlier run has copied: the log went on since."""
    shard = Shard(connection, number)
    for part in shard.parts():
        shard.drop_part(part.base_offset)
    for snapshot in shard.snapshots():
        shard.drop_snapshot(snapshot)


def _make_copy(directory: DataDirectory, identity: Identity) -> None:
    directory.open(identity)
    mark_boot(directory)
    directory.close()


def _make_node(path: Path, identity: Identity) -> None:
    """Make a directory with shards that of a node."""
    write_durably(path / "penstock.json", msgspec.json.encode(identity) + b"\n")
    _make_copy(DataDirectory(path), identity)


def _recovered(directory: DataDirectory, identity: Identity) -> SegmentLog:
    """The log as after a start: a torn tail is cut off."""
    log = SegmentLog(directory, segment_bytes=0, shard=identity.shard)
    for _ in log.recover().events:
        pass
    log.close()
    return log


def _copy(connection: Connection, log: SegmentLog, number: int, advance: Advance) -> None:
    shard, last = Shard(connection, number), 0
    known = log.snapshots[0].point if log.snapshots else START
    for segment in log.segments:
        shard.begin_part(segment.start, segment.created, last + 1)
        last += shard.copy_batches(segment.base_offset, _batches(segment, known, last, advance))
        if segment is not log.segments[-1]:
            shard.end_part(segment.base_offset, segment.end())  # A hole may follow it.
    connection.execute("UPDATE penstock.shard SET last_batch = %s WHERE id = %s", (last, number))
    for snapshot in reversed(log.snapshots):
        with snapshot_path(log.directory.snapshots, snapshot.offset).open("rb") as file:
            shard.write_snapshot(snapshot.offset, pieces_of(file))
        shard.publish_snapshot(snapshot.offset)


def _batches(segment: Segment, known: Point, last: int, advance: Advance) -> Iterator[StoredBatch]:
    """The batches of a segment. Damaged ones that a snapshot covers are left out."""
    with closing(segment.open()) as file:
        for number, found in enumerate(SegmentReader(segment, known).batches(), last + 1):
            header = found.header
            data = file.read(header.base_position, header.total_bytes)
            advance(len(data))
            yield StoredBatch(number, 0, *header.start, data)


def separate(directory: DataDirectory, log: StoredLog, advance: Advance = lambda _: None) -> None:
    """Make a log of its own from the copy of a store, whose log was recovered and is closed after this."""
    assert directory.identity is not None
    for segment in log.segments:
        segment.open().close()  # Fetches it.
        sync(segment.path)
        advance(segment.path.stat().st_size)
    for snapshot in directory.snapshots.iterdir():
        sync(snapshot)
    for folder in (directory.log, directory.snapshots):
        sync(folder)
    identity = directory.identity.successor(log.end.offset)  # Another log: the store may go on too.
    write_durably(directory.path / "penstock.json", msgspec.json.encode(identity) + b"\n")
    for name in ("boot", "owner"):
        (directory.path / name).unlink()
    sync(directory.path)


def log_bytes(connection: Connection, number: int) -> int:
    """The size of the log of a shard."""
    parts = Shard(connection, number).parts()
    return _end(connection, number).position - parts[0].base_position if parts else 0


def _end(connection: Connection, number: int) -> Point:
    """Where the log of a shard ends."""
    shard = Shard(connection, number)
    parts = shard.parts()
    if not parts:
        return START
    last = read_header(shard.last_header(parts[-1].base_offset)[1])
    return last.end if last else parts[-1].start
