"""A log in memory: reliable, immediate, gone with the process. For tests, and for a queue inside a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from penstock.model.events import Event
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.log.batch import HEADER_BYTES, START, Header, Point, read_header
from penstock.storage.log.decode import events_of
from penstock.storage.log.encode import Batch
from penstock.storage.log.index import PartIndexes
from penstock.storage.log.parts import Part, holds
from penstock.storage.log.view import View
from penstock.storage.port import Progress, Recovered, Section, SnapshotFacts


class MemoryPart(NamedTuple):
    """One batch: a part of the log that can be removed. It is its own open file."""

    base_offset: int
    base_position: Position
    created: Nanos
    data: bytes

    def __str__(self) -> str:
        return f"batch {self.base_offset}"

    def end(self) -> Position:
        return self.base_position + len(self.data)

    def open(self) -> MemoryPart:
        return self

    def read(self, position: Position, size: int) -> bytes:
        start = position - self.base_position
        return self.data[start : start + size]

    def close(self) -> None:
        """Nothing is open."""


class MemorySnapshot(NamedTuple):
    """A snapshot as a file would give it back: columns are bytes."""

    facts: SnapshotFacts
    sections: list[Section]


class MemoryLog:
    """`durable` is what the disk would hold: sealed batches, the same bytes as in a segment."""

    def __init__(self, durable: list[bytes] | None = None, snapshot: MemorySnapshot | None = None) -> None:
        self.durable: list[bytes] = durable if durable is not None else []
        self.snapshot = snapshot
        self._unpublished: MemorySnapshot | None = None
        self._batch = Batch(0, 0)
        self._indexes = PartIndexes()

    def recover(self) -> Recovered:
        if self.snapshot is None:
            return Recovered(None, self._replay(0))
        return Recovered(self.snapshot.sections, self._replay(self.snapshot.facts.offset))

    def _replay(self, start: int) -> Iterator[tuple[Event, Position]]:
        for header, data in self._durable():
            if header.end.offset > start:
                for offset, found in enumerate(events_of(header, data[HEADER_BYTES:]), header.base_offset):
                    if offset >= start:
                        yield found
        self._batch = Batch(*self.end)

    def append(self, event: Event) -> Position:
        return self._batch.add(event)

    @property
    def collecting(self) -> int:
        return self._batch.size

    @property
    def appended(self) -> Point:
        return self._batch.appended

    def commit(self, now: Nanos, progress: Progress) -> None:
        self.durable.append(self._seal(now))
        progress(Stage.WRITE)
        progress(Stage.SYNC)

    def _seal(self, now: Nanos) -> bytes:
        batch = self._batch
        self._batch = Batch(*batch.end)
        return batch.seal(now)

    @property
    def start(self) -> Point:
        return next((header.start for header, _ in self._durable()), self.end)

    @property
    def end(self) -> Point:
        return _header_of(self.durable[-1]).end if self.durable else START

    def read(self, position: Position, size: int) -> bytes:
        if position >= self._batch.base_position:
            return self._batch.read(position, size)
        for data in reversed(self._written()):
            header = _header_of(data)
            if position >= header.base_position:
                return self._read_batch(header, data, position - header.base_position, size)
        raise AssertionError(f"nothing was written at position {position}")

    def _read_batch(self, _: Header, data: bytes, start: int, size: int) -> bytes:
        return data[start : start + size]

    def require(self, _: Position) -> None:
        """Everything is here."""

    def view(self) -> View:
        parts = tuple(MemoryPart(*header.start, header.time, data) for header, data in self._durable())
        return View(parts, self.end, self._indexes)

    def holds(self, position: Position) -> bool:
        return holds(self.view().parts, position)

    @property
    def damaged(self) -> list[tuple[Position, Position]]:
        return []

    @property
    def snapshots(self) -> list[SnapshotFacts]:
        return [self.snapshot.facts] if self.snapshot else []

    def begin_snapshot(self) -> Point:
        return self.appended

    def write_snapshot(self, sections: Iterable[Section], at: Point, time: Nanos) -> None:
        copied: list[Section] = [
            (kind, facts, tuple(np.frombuffer(column.tobytes(), dtype=np.uint8) for column in columns))
            for kind, facts, columns in sections
        ]
        size = sum(len(facts) + sum(map(len, columns)) for _, facts, columns in copied)
        self._unpublished = MemorySnapshot(SnapshotFacts(*at, time, size), copied)

    def publish_snapshot(self, offset: int) -> None:
        assert self._unpublished is not None
        assert self._unpublished.facts.offset == offset
        self.snapshot, self._unpublished = self._unpublished, None

    def remove(self, part: Part) -> None:
        assert part.end() != self.end.position, "the newest part is being written"
        self.durable[:] = [data for header, data in self._durable() if header.base_offset != part.base_offset]

    def _durable(self) -> Iterator[tuple[Header, bytes]]:
        return ((_header_of(data), data) for data in self.durable)

    def _written(self) -> list[bytes]:
        return self.durable

    def close(self) -> None:
        """Nothing is open."""

    def abandon(self) -> None:
        """Nothing to cut off: what is committed is durable at once."""


@lru_cache(maxsize=1 << 12)  # Every read looks for its batch, and simulations read much.
def _header_of(data: bytes) -> Header:
    header = read_header(data)
    assert header is not None
    return header
