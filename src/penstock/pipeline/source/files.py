"""Reads a log from the files of a data directory. The broker need not run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from penstock.decoding import decode_json
from penstock.engine.names import StoredNames
from penstock.errors import DamagedLogError, DataDirectoryError, EventsLostError, EventsRemovedError
from penstock.model.values import Nanos, Position
from penstock.pipeline.source.log import Batches, Extent, NameTable
from penstock.storage.directory import DataDirectory
from penstock.storage.log.files import LogFiles
from penstock.storage.log.names import names_defined, queues_created
from penstock.storage.log.snapshot import check_snapshot, list_snapshots, read_snapshot
from penstock.storage.log.view import Cursor, View

_READ_BYTES = 1 << 20  # Measured: larger reads are slower, because their memory is new to the process.
_TRIES = 5


class FileLog:
    def __init__(self, path: Path) -> None:
        self._directory = DataDirectory(path)
        identity = self._directory.read_identity()
        self._identity = identity
        self._log_id = identity.message_ids().log_id
        self._files = LogFiles(self._directory)
        self._names = NameTable({}, {})
        self.named_to = 0  # The position up to which the log was searched for names.

    def extent(self) -> Extent:
        view = self._files.view()
        first = view.earliest()
        size = view.end.position - first.position
        own = self._identity
        ends = first.offset, view.end.offset
        return Extent(self._log_id, own.shard, *ends, size, tuple(own.lineage), own.shards)

    def offset_at(self, moment: Nanos) -> int:
        return self._files.view().offset_at(moment)

    def offset_within(self, start: int, bytes_max: int) -> int:
        view = self._files.view()
        point = view.point_of(start)
        if point.offset >= view.end.offset:
            return view.end.offset
        # The first batch counts even if it begins before `start`; otherwise there would be no progress.
        return view.batch_end(point, view.end.offset, bytes_max).offset

    def batches(self, start: int, end: int) -> Batches:
        view = self._files.view()
        if end > view.end.offset:
            raise EventsLostError(f"the log in {self._directory.path} ends at offset {view.end.offset}, before {end}")
        cursor = Cursor(view.point_of(start).position)
        try:
            while found := cursor.read(view, _READ_BYTES):
                for header, payload in found:
                    if header.base_offset >= end:
                        return
                    yield header, payload
        finally:
            cursor.close()

    def snapshot(self, folder: Path) -> Path | None:  # noqa: ARG002 - It can be read where it is.
        for path in list_snapshots(self._directory.snapshots):
            try:
                check_snapshot(path)
                return path
            except (DamagedLogError, FileNotFoundError):
                continue  # The older one is a spare.
        return None

    def raw(self, start: Position, end: Position) -> bytes:
        view, pieces = self._files.view(), []
        with closing(Cursor(start)) as cursor:
            while data := cursor.read_raw(view, end, _READ_BYTES):
                pieces.append(data)
        return b"".join(pieces)

    def close(self) -> None:
        """Nothing stays open."""

    # ── Names ───────────────────────────────────────────────────────────────────────────────────────────────

    def names(self) -> NameTable:
        """The names defined in the log, and from the snapshot those whose definition retention has removed."""
        for _ in range(_TRIES):
            try:
                self._search(self._files.view())
                return self._names
            except EventsRemovedError:
                continue  # Retention removed a segment just now: look again.
        raise DataDirectoryError(f"{self._directory.path} changes faster than it can be read: try again")

    def _search(self, view: View) -> None:
        first = view.earliest()
        if first.position > self.named_to:
            self._read_snapshot()
        cursor = Cursor(max(self.named_to, first.position))
        try:
            while found := cursor.read(view, _READ_BYTES):
                for batch in found:
                    self._names.queues.update(queues_created(*batch))
                    self._names.texts.update(names_defined(*batch))
                self.named_to = cursor.position
        finally:
            cursor.close()

    def _read_snapshot(self) -> None:
        for path in list_snapshots(self._directory.snapshots):
            try:
                for kind, facts, _ in read_snapshot(path):
                    if kind == "engine":
                        self._names.texts.update(decode_json(facts, StoredNames).by_number())
                    elif kind == "queue":
                        queue = decode_json(facts, _Queue)
                        self._names.queues[queue.number] = queue.name
                return
            except (DamagedLogError, FileNotFoundError):
                continue  # An older snapshot has most of the names.


class _Queue(msgspec.Struct):
    number: int
    name: str
