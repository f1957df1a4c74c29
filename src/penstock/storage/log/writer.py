"""Group commit: the thread that writes batches to the newest segment and syncs them, one at a time."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from penstock.model.values import Nanos, Position, Stage
from penstock.storage.directory import sync
from penstock.storage.log.batch import Point
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, Segment, segment_path
from penstock.storage.port import Progress


class Job(NamedTuple):
    """A sealed batch to be written."""

    data: bytes
    start: Point
    now: Nanos
    progress: Progress


class Writer:
    """Owns the newest segment, and begins the next one when it is full."""

    def __init__(self, segment_bytes: int, shard: int, directory: Path, segments: list[Segment]) -> None:
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
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
            self._sync(self._file)
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
                self._commit(job)
            except Exception as error:
                # Never tried again: after a failed fsync the kernel may report lost pages as clean. And whatever else
                # ends this thread must not leave others waiting for it.
                job.progress(error)
                return
            job.progress(Stage.SYNC)

    def _commit(self, job: Job) -> None:
        self._write(job)
        job.progress(Stage.WRITE)
        assert self._file is not None
        os.fdatasync(self._file)

    def _write(self, job: Job) -> None:
        position = job.start.position
        segment = self._segments[-1] if self._segments else None
        at = segment.file_offset(position) if segment else 0
        if segment is None or (at > SEGMENT_HEADER_BYTES and self._is_full(at, job)):
            self._finish(at)
            segment = self._begin(job)
            at = segment.file_offset(position)
        assert self._file is not None
        view = memoryview(job.data)
        while view:
            written = os.pwrite(self._file, view, at)
            at += written
            view = view[written:]

    def _is_full(self, used: int, job: Job) -> bool:
        return used + len(job.data) > self._segment_bytes

    def _begin(self, job: Job) -> Segment:
        segment = Segment(segment_path(self._directory, job.start.offset), self._shard, *job.start, job.now)
        self._file = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._reserve(self._file, 0)
        os.pwrite(self._file, segment.header(), 0)
        self._sync(self._file)
        sync(self._directory)
        self._segments.append(segment)
        return segment

    def _reserve(self, file: int, used: int) -> None:
        """Space reserved in advance makes fdatasync twice as fast: the size of the file does not change each time."""
        if used < self._segment_bytes:
            os.posix_fallocate(file, used, self._segment_bytes - used)

    def _finish(self, end: int) -> None:
        if self._file is not None:
            os.ftruncate(self._file, end)
            self._sync(self._file)
            os.close(self._file)
            self._file = None

    def _sync(self, file: int) -> None:
        os.fsync(file)
