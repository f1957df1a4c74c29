"""What a job reads from: the log of a broker, wherever it is. Both kinds give whole batches, checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from penstock.model.values import Nanos
from penstock.storage.log.batch import Header

Batches = Iterator[tuple[Header, bytes]]


class Extent(NamedTuple):
    """What there is to read. Bytes are those between the two offsets."""

    id: str  # Of the log: no other has it.
    shard: int
    earliest: int
    end: int
    bytes: int


class NameTable(NamedTuple):
    """What the numbers in the log stand for."""

    texts: dict[int, str]
    queues: dict[int, str]


class EventLog(Protocol):
    def extent(self) -> Extent: ...

    def names(self) -> NameTable:
        """Of everything before the end that `extent` has told of."""

    def offset_at(self, moment: Nanos) -> int:
        """The offset of the first event at or after a time; the end of the log if there is none."""

    def offset_within(self, start: int, bytes_max: int) -> int:
        """The end of the whole batches from `start` on that have no more bytes than this; of one at least."""

    def batches(self, start: int, end: int) -> Batches:
        """Whole batches that hold these offsets, and may hold others. Raises `EventsRemovedError`."""

    def close(self) -> None:
        """Let go of what is open. The next call opens it again."""
