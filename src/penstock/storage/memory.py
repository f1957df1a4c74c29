"""A log in memory: honest, immediate, gone with the process. For tests, and for a queue inside a program."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.model.events import Event
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.log.batch import HEADER_BYTES, Header, read_header
from penstock.storage.log.decode import events_of
from penstock.storage.log.encode import Batch
from penstock.storage.port import Progress, Recovered, Section


class MemoryLog:
    """`durable` is what the disk would hold: sealed batches, the same bytes as in a segment."""

    def __init__(self, durable: list[bytes] | None = None) -> None:
        self.durable: list[bytes] = durable if durable is not None else []
        self.snapshot: tuple[int, list[Section]] | None = None  # The offset it is of, and its sections.
        self._batch = Batch(0, 0)

    def recover(self) -> Recovered:
        sections = self.snapshot[1] if self.snapshot else None
        return Recovered(sections, self._replay(self.snapshot[0] if self.snapshot else 0))

    def _replay(self, start: int) -> Iterator[tuple[Event, Position]]:
        offset, position = 0, 0
        for data in self.durable:
            header = read_header(data)
            assert header is not None
            if offset + header.records <= start:
                offset += header.records
            else:
                for event, at in events_of(header, data[HEADER_BYTES:]):
                    if offset >= start:
                        yield event, at
                    offset += 1
            position += len(data)
        self._batch = Batch(offset, position)

    def append(self, event: Event) -> Position:
        return self._batch.add(event)

    @property
    def collecting(self) -> int:
        return self._batch.size

    @property
    def next_offset(self) -> int:
        return self._batch.base_offset + self._batch.count

    def commit(self, now: Nanos, progress: Progress) -> None:
        self.durable.append(self._seal(now))
        progress(Stage.WRITE)
        progress(Stage.SYNC)

    def _seal(self, now: Nanos) -> bytes:
        batch = self._batch
        self._batch = Batch(batch.base_offset + batch.count, batch.end_position)
        return batch.seal(now)

    def read(self, position: Position, size: int) -> bytes:
        if position >= self._batch.base_position:
            return self._batch.read(position, size)
        for data in reversed(self._written()):
            header = read_header(data)
            assert header is not None
            if position >= header.base_position:
                return self._read_batch(header, data, position - header.base_position, size)
        raise AssertionError(f"nothing was written at position {position}")

    def _read_batch(self, _: Header, data: bytes, start: int, size: int) -> bytes:
        return data[start : start + size]

    def _written(self) -> list[bytes]:
        return self.durable

    def close(self) -> None:
        """Nothing to let go of."""
