"""Where a backup comes from: a broker that runs, or the data directory of one that does not."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from penstock.model.values import Nanos, Position
from penstock.storage.backup.manifest import PartFacts, SnapshotState, SourceState
from penstock.storage.directory import DataDirectory, Identity
from penstock.storage.history.copying import copy_history, history_reached
from penstock.storage.log.files import LogFiles
from penstock.storage.log.recovery import whole_snapshots
from penstock.storage.log.snapshot import snapshot_path
from penstock.storage.log.view import Cursor, View
from penstock.storage.shards import Shards

_PIECE_BYTES = 1 << 20


class Source(Protocol):
    """One shard. Read in this order: state, snapshot, history, state again, log. The snapshot needs what the history
    has, and the history has nothing that is past the end in the second state."""

    def state(self) -> SourceState: ...

    def snapshot(self, offset: int) -> Iterable[bytes]:
        """The bytes of the snapshot file."""

    def history(self) -> Iterable[bytes]:
        """The bytes of an LMDB file that is consistent in itself."""

    def log(self, start: Position, end: Position) -> Iterable[bytes]:
        """The bytes of the log between two positions of one part."""


class StoreSource:
    """All shards of a store. They are those of one moment because nobody changes them, or because there is only
    one."""

    def __init__(self, shards: Sequence[Source], store: Shards | None = None) -> None:
        """`store`: of several shards."""
        self.shards = shards
        self.store = store

    def states(self) -> list[SourceState]:
        """The states of all shards at one moment."""
        return [shard.state() for shard in self.shards]


class DirectorySource:
    """A data directory that this process has taken, so that no broker changes it."""

    def __init__(self, directory: DataDirectory, identity: Identity, now: Nanos) -> None:
        self._directory = directory
        self._identity = identity
        self._view = LogFiles(directory).view()
        self._now = now

    def state(self) -> SourceState:
        snapshots = list(whole_snapshots(self._directory.snapshots).values())
        newest = SnapshotState(snapshots[0].offset, snapshots[0].bytes) if snapshots else None
        reached = history_reached(self._directory.history)
        return source_state(self._identity, self._view, self._now, newest, reached)

    def snapshot(self, offset: int) -> Iterator[bytes]:
        with snapshot_path(self._directory.snapshots, offset).open("rb") as file:
            while data := file.read(_PIECE_BYTES):
                yield data

    def history(self) -> Iterator[bytes]:
        read_end, write_end = os.pipe()
        copier = threading.Thread(target=_copy_and_close, args=(self._directory.history, write_end))
        copier.start()
        with open(read_end, "rb") as pipe:
            while data := pipe.read(_PIECE_BYTES):
                yield data
        copier.join()

    def log(self, start: Position, end: Position) -> Iterator[bytes]:
        with closing(Cursor(start)) as cursor:
            while data := cursor.read_raw(self._view, end, _PIECE_BYTES):
                yield data


def source_state(
    identity: Identity, view: View, now: Nanos, snapshot: SnapshotState | None, reached: Position | None
) -> SourceState:
    parts = [
        PartFacts(part.base_offset, part.base_position, part.created, view.part_end(index) - part.base_position)
        for index, part in enumerate(view.parts)
    ]
    log = identity.message_ids().log_id
    return SourceState(log, identity, now, *view.end, parts, snapshot, reached)


def _copy_and_close(history: Path, pipe: int) -> None:
    try:
        copy_history(history, pipe)
    finally:
        os.close(pipe)
