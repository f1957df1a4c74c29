"""What the rest of the system knows of a log. Nothing outside this room knows that it is a file.

One log serves one engine: the unit that a process owns. Appends collect in memory until `commit` makes them durable,
one commit at a time; the next batch collects meanwhile. Each commit passes two stages after the first one, `ready`
(in memory): `write` (handed to the operating system) and `sync` (on the disk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from penstock.model.events import Event
from penstock.model.values import Nanos, Position, Stage

Section = tuple[str, bytes, tuple[NDArray[Any], ...]]  # A piece of a snapshot: kind, facts, columns.

# Called with each stage reached, or with the error that ended the commit (and the log).
Progress = Callable[[Stage | BaseException], None]


class Recovered(NamedTuple):
    """What was found at start-up: the newest whole snapshot, then the events after it with their positions."""

    sections: Iterable[Section] | None
    events: Iterator[tuple[Event, Position]]


class Log(Protocol):
    def recover(self) -> Recovered:
        """Read what is there, once, before the first append. `events` must be read to its end."""

    def append(self, event: Event) -> Position:
        """Add an event to the batch that collects; where its extent begins."""

    @property
    def collecting(self) -> int:
        """Bytes in the batch that collects; 0 if there is nothing to commit."""

    def commit(self, now: Nanos, progress: Progress) -> None:
        """Make the batch that collects durable. One at a time. May call `progress` from another thread."""

    def read(self, position: Position, size: int) -> bytes:
        """An extent, or a part of it, from memory or disk."""

    def close(self) -> None:
        """Let go of everything. Does not commit."""
