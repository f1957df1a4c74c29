"""Data directories for tests of backups: worked by an engine, without a broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.engine.engine import Engine
from penstock.model.commands import CreateQueue, Fetch, Finish, NewMessage, Publish
from penstock.model.lifecycle import LEASED
from penstock.model.settings import QueueSettings
from penstock.storage.backup.source import DirectorySource
from penstock.storage.directory import DataDirectory
from penstock.storage.log.segments import SegmentLog
from tests.support.spoilt_logs import engine_of, snapshot, work

SEGMENT_BYTES = 1500


def living(engine: Engine, queue: str) -> list[int]:
    """The sequences of the messages in a queue."""
    found = [sequences.tolist() for sequences, _ in engine.queues[engine.numbers[queue]].rows.tables()]
    return [sequence for piece in found for sequence in piece]


class Worked:
    """A data directory that an engine writes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._directory = DataDirectory(path)
        self._directory.open()
        self.log = SegmentLog(self._directory, segment_bytes=SEGMENT_BYTES)
        self.engine: Engine = engine_of(self.log)

    def create(self, *names: str) -> None:
        for name in names:
            work(self.engine, self.log, CreateQueue(name, QueueSettings()))

    def publish(self, queue: str, *bodies: str) -> None:
        for body in bodies:
            work(self.engine, self.log, Publish(queue, [NewMessage(body.encode())]))

    def finish(self, queue: str, count: int) -> list[int]:
        """Take and finish messages. Returns their sequences."""
        before = set(self.living(queue))
        work(self.engine, self.log, Fetch(queue, count, consumer="worker"))
        number = self.engine.numbers[queue]
        rows = self.engine.queues[number].rows
        taken = [sequence for sequence in sorted(before) if (row := rows.get(sequence)) and row.state == LEASED]
        for sequence in taken:
            work(self.engine, self.log, Finish(number, sequence))
        return taken

    def living(self, queue: str) -> list[int]:
        return living(self.engine, queue)

    def snapshot(self) -> Path:
        return snapshot(self.engine, self.log)

    def close(self) -> None:
        self.log.close()
        self._directory.close()


@contextmanager
def worked(path: Path) -> Iterator[Worked]:
    directory = Worked(path)
    try:
        yield directory
    finally:
        directory.close()


@contextmanager
def source_of(path: Path) -> Iterator[DirectorySource]:
    directory = DataDirectory(path)
    identity = directory.open()
    try:
        yield DirectorySource(directory, identity, 0)
    finally:
        directory.close()
