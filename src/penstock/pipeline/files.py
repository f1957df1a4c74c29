"""The log of a data directory on this machine, read from its files; the broker need not run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from penstock.engine.names import StoredNames
from penstock.errors import DamagedLogError, DataDirectoryError, EventsLostError, EventsRemovedError
from penstock.ids import MessageIds
from penstock.model.kinds import DEFINES, Kind
from penstock.model.values import Nanos
from penstock.pipeline.log import Batches, Extent, NameTable
from penstock.storage.directory import DataDirectory
from penstock.storage.log.batch import RECORD_BYTES, Header, extent_bounds, records_of
from penstock.storage.log.reader import BatchCursor, LogIndex, View, earliest
from penstock.storage.log.segment import Segment, SegmentReader, open_segment
from penstock.storage.log.snapshot import list_snapshots, read_snapshot

_READ_BYTES = 1 << 20  # Measured: more is memory that is touched for the first time.
_TRIES = 5


class FileLog:
    def __init__(self, path: Path) -> None:
        self._directory = DataDirectory(path)
        identity = self._directory.read_identity()
        self._ids = MessageIds(bytes.fromhex(identity.id_key), identity.shard)
        self._index = LogIndex()
        self._segments: dict[Path, Segment] = {}
        self._newest: SegmentReader | None = None  # How far it was read.
        self._names = NameTable({}, {})
        self._named_to = 0  # The position up to which the log was searched for names.

    def extent(self) -> Extent:
        view = self._view()
        first = earliest(view)
        return Extent(
            self._ids.log_id, self._ids.shard, first.offset, view.end_offset, view.end_position - first.position
        )

    def offset_at(self, moment: Nanos) -> int:
        return self._index.offset_at(self._view(), moment)

    def offset_within(self, start: int, bytes_max: int) -> int:
        view = self._view()
        place = self._index.place_of(view, start)
        if place.offset >= view.end_offset:
            return view.end_offset
        # The first batch may begin before `start`: it counts, or there would be no progress.
        return self._index.batch_end(view, place, view.end_offset, bytes_max).offset

    def batches(self, start: int, end: int) -> Batches:
        view = self._view()
        if end > view.end_offset:
            raise EventsLostError(
                f"offset {end - 1} is not in {self._directory.path}: its log ends at {view.end_offset}"
            )
        cursor = BatchCursor(self._index.place_of(view, start).position)
        try:
            while found := cursor.read(view, _READ_BYTES):
                for header, payload in found:
                    if header.base_offset >= end:
                        return
                    yield header, payload
        finally:
            cursor.close()

    def close(self) -> None:
        """Nothing stays open."""

    # ── Names ───────────────────────────────────────────────────────────────────────────────────────────────

    def names(self) -> NameTable:
        """The definitions in the log, and before them what the snapshot knows of those that retention has removed."""
        for _ in range(_TRIES):
            try:
                self._search(self._view())
                return self._names
            except EventsRemovedError:
                continue  # Just now.
        raise DataDirectoryError(f"{self._directory.path} changes faster than it can be read")

    def _search(self, view: View) -> None:
        first = earliest(view)
        if first.position > self._named_to:
            self._read_snapshot()
        cursor = BatchCursor(max(self._named_to, first.position))
        try:
            while found := cursor.read(view, _READ_BYTES):
                for header, payload in found:
                    self._learn(header, payload)
                self._named_to = cursor.position
        finally:
            cursor.close()

    def _learn(self, header: Header, payload: bytes) -> None:
        kinds = payload[header.heap_bytes :: RECORD_BYTES]
        if not any(bytes([kind]) in kinds for kind in DEFINES):
            return
        records = records_of(header, payload)
        bounds = extent_bounds(records)
        for at in np.flatnonzero(np.isin(records["kind"], list(DEFINES))).tolist():
            number, text = int(records["queue"][at]), payload[bounds[at] : bounds[at + 1]]
            if records["kind"][at] == Kind.QUEUE_CREATED:
                self._names.queues[number] = msgspec.json.decode(text, type=_NewQueue).name
            else:  # A name that is forgotten here was in use before.
                self._names.texts[number] = text.decode()

    def _read_snapshot(self) -> None:
        for path in list_snapshots(self._directory.snapshots):
            try:
                for kind, facts, _ in read_snapshot(path):
                    if kind == "engine":
                        self._names.texts.update(msgspec.json.decode(facts, type=StoredNames).by_number())
                    elif kind == "queue":
                        queue = msgspec.json.decode(facts, type=_Queue)
                        self._names.queues[queue.number] = queue.name
                return
            except (DamagedLogError, FileNotFoundError):
                continue  # An older one knows most of it.

    # ── What there is ───────────────────────────────────────────────────────────────────────────────────────

    def _view(self) -> View:
        for _ in range(_TRIES):
            try:
                return self._look()
            except FileNotFoundError:
                continue  # Retention was at work: what there is now is another list of files.
        raise DataDirectoryError(f"{self._directory.path} changes faster than it can be read")

    def _look(self) -> View:
        paths = sorted(self._directory.log.glob("*.log"))
        segments = [segment for path in paths if (segment := self._open(path, newest=path == paths[-1]))]
        self._segments = {segment.path: segment for segment in segments}
        if not segments:
            return View((), 0, 0)
        newest = SegmentReader(segments[-1])
        if self._newest is not None and self._newest.segment == newest.segment:
            newest.next_offset, newest.end = self._newest.next_offset, self._newest.end
        for _ in newest.batches():
            pass  # A last one that is not whole is just being written.
        if newest.damage and newest.damage.resumes_at is not None:
            raise DamagedLogError(f"{newest.segment.path}: damaged at byte {newest.damage.file_offset}")
        self._newest = newest
        held = tuple(segment for segment in segments if segment.base_position < newest.end_position)
        return View(held, newest.next_offset, newest.end_position)

    def _open(self, path: Path, *, newest: bool) -> Segment | None:
        try:
            return self._segments.get(path) or open_segment(path)
        except DamagedLogError:
            if newest:
                return None  # It is just being made, or a crash left it so; it holds nothing.
            raise


class _NewQueue(msgspec.Struct):
    name: str


class _Queue(msgspec.Struct):
    number: int
    name: str
