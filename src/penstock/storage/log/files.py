"""The log of a data directory, read from its files beside the broker that writes them, or without one."""

from __future__ import annotations

from pathlib import Path

from penstock.errors import DamagedLogError, DataDirectoryError
from penstock.storage.directory import DataDirectory
from penstock.storage.log.batch import START
from penstock.storage.log.index import PartIndexes
from penstock.storage.log.segment import Segment, SegmentReader, open_segment, segment_paths
from penstock.storage.log.view import View

_TRIES = 5


class LogFiles:
    def __init__(self, directory: DataDirectory) -> None:
        self._directory = directory
        self._indexes = PartIndexes()
        self._segments: dict[Path, Segment] = {}
        self._newest: SegmentReader | None = None  # How far it was read.

    def view(self) -> View:
        """What there is now: everything up to the last whole batch."""
        for _ in range(_TRIES):
            try:
                return self._look()
            except FileNotFoundError:
                continue  # Retention has changed the list of files.
        raise DataDirectoryError(f"{self._directory.path} changes faster than it can be read")

    def _look(self) -> View:
        paths = segment_paths(self._directory.log)
        segments = [segment for path in paths if (segment := self._open(path, newest=path == paths[-1]))]
        self._segments = {segment.path: segment for segment in segments}
        if not segments:
            return View((), START, self._indexes)
        newest = SegmentReader(segments[-1])
        if self._newest is not None and self._newest.segment == newest.segment:
            newest.next_offset, newest.end = self._newest.next_offset, self._newest.end
        for _ in newest.batches():
            pass  # A last batch that is not whole is being written.
        if newest.damage and newest.damage.resumes_at is not None:
            raise DamagedLogError(f"{newest.segment.path}: damaged at byte {newest.damage.file_offset}")
        self._newest = newest
        end = newest.end_point
        held = tuple(segment for segment in segments if segment.base_position < end.position)
        return View(held, end, self._indexes)

    def _open(self, path: Path, *, newest: bool) -> Segment | None:
        try:
            return self._segments.get(path) or open_segment(path)
        except DamagedLogError:
            if newest:
                return None  # It is being made, or a crash left it so; it holds nothing.
            raise
