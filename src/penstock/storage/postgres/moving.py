"""Moves a log from a data directory into a store and back. Message ids stay valid: the key moves with the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec

from penstock.errors import StoreError
from penstock.storage.directory import DataDirectory, Identity, sync, write_durably
from penstock.storage.log.batch import START, Point, read_header
from penstock.storage.log.segment import Segment, SegmentReader
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.snapshot import snapshot_path
from penstock.storage.postgres.cache import mark_boot, pieces_of
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.log import StoredLog
from penstock.storage.postgres.schema import identity_of, initialise, set_identity, version_of
from penstock.storage.postgres.shard import Shard, StoredBatch

Advance = Callable[[int], None]  # Called with the number of bytes copied since the last call.


def import_log(connection: Connection, directory: DataDirectory, advance: Advance = lambda _: None) -> Point:
    """Copy the log of a directory, which nobody serves, into a new store: all of it or nothing. After that the
    directory is a copy of the store. Returns where the log ends."""
    directory.read_identity()
    identity = directory.open()
    try:
        log = _recovered(directory, identity)
        with connection.transaction():
            if _is_new(connection, identity):
                _copy(connection, log, identity.shard, advance)
                set_identity(connection, identity)
    finally:
        directory.close()
    directory.open(identity)
    mark_boot(directory)
    directory.close()
    return log.end


def _recovered(directory: DataDirectory, identity: Identity) -> SegmentLog:
    """The log as after a start: a torn tail is cut off."""
    log = SegmentLog(directory, segment_bytes=0, shard=identity.shard)
    for _ in log.recover().events:
        pass
    log.close()
    return log


def _is_new(connection: Connection, identity: Identity) -> bool:
    """False if the store has this log already. Raises `StoreError` if it has another one."""
    if not version_of(connection):
        initialise(connection)
    if identity_of(connection) == identity:
        return False
    connection.execute("LOCK TABLE penstock.shard IN EXCLUSIVE MODE")
    if connection.row("SELECT 1 FROM penstock.shard WHERE epoch > 0 LIMIT 1"):
        raise StoreError("the store has a log of its own already; import into a database without a store")
    return True


def _copy(connection: Connection, log: SegmentLog, number: int, advance: Advance) -> None:
    shard, last = Shard(connection, number), 0
    known = log.snapshots[0].point if log.snapshots else START
    for segment in log.segments:
        shard.begin_part(segment.start, segment.created, last + 1)
        last += shard.copy_batches(segment.base_offset, _batches(segment, known, last, advance))
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
    shard = Shard(connection, number)
    parts = shard.parts()
    if not parts:
        return 0
    _, header = shard.last_header(parts[-1].base_offset)
    last = read_header(header)
    return (last.end.position if last else parts[-1].base_position) - parts[0].base_position
