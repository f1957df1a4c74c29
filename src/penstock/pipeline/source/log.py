"""The log that a job reads, over HTTP or from files. Both return whole batches with valid checksums."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.model.values import Nanos, Position
from penstock.storage.log.batch import Header

Batches = Iterator[tuple[Header, bytes]]


class Extent(NamedTuple):
    """Which log it is and what can be read: the offsets from `earliest` up to `end`, and their size in bytes."""

    id: str  # Unique among all logs.
    shard: int
    earliest: int
    end: int
    bytes: int
    ancestors: tuple[tuple[str, int], ...] = ()  # Logs that it was restored from: both are the same up to an offset.
    shards: int = 1  # How many the store has.

    @property
    def has_begun_late(self) -> bool:
        """Whether events are past retention. A shard made from another log begins where that ended."""
        return self.earliest > 0 and self.earliest not in {end for _, end in self.ancestors}

    @property
    def name(self) -> str:
        return "the log" if self.shards == 1 else f"the log of shard {self.shard}"

    def bytes_of(self, start: int, end: int) -> int:
        """About how many bytes these offsets have."""
        return self.bytes * max(0, end - start) // max(self.end - self.earliest, 1)

    def same_until(self, log: str | None) -> int | None:
        """The offset up to which another log and this one are the same; None if they are one log. Absent: a log that
        was never restored."""
        ancestors = [name for name, _ in self.ancestors]
        if log == self.id or (log is None and not ancestors):
            return None
        if log is not None and log not in ancestors:
            return 0
        since = ancestors.index(log) if log is not None else 0
        return min(end for _, end in self.ancestors[since:])


class NameTable(NamedTuple):
    """The names that the numbers in the log stand for."""

    texts: dict[int, str]
    queues: dict[int, str]


class EventLog(Protocol):
    @property
    def named_to(self) -> int:
        """Which names are known: a number that increases with them."""

    def extent(self) -> Extent: ...

    def names(self) -> NameTable:
        """The names of all events before the end that `extent` returned last."""

    def offset_at(self, moment: Nanos) -> int:
        """The offset of the first event at or after a time; the end of the log if there is none."""

    def offset_within(self, start: int, bytes_max: int) -> int:
        """The end of the last whole batch that fits into `bytes_max` bytes from `start`; at least one batch."""

    def batches(self, start: int, end: int) -> Batches:
        """All batches that contain these offsets; the first and last may contain others. Raises
        `EventsRemovedError`."""

    def snapshot(self, folder: Path) -> Path | None:
        """The newest snapshot of the state, which `storage/log/snapshot.py` reads; perhaps a copy in `folder`.
        None if there is none."""

    def raw(self, start: Position, end: Position) -> bytes:
        """The bytes of the log between two positions, unchecked."""

    def close(self) -> None:
        """Close connections and files. The next call opens them again."""
