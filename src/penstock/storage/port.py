"""What the rest of the system knows of a log. Nothing outside this room knows that it is made of files.

One log serves one engine: the unit that a process owns. Appends collect in memory until `commit` makes them durable,
one commit at a time; the next batch collects meanwhile. Each commit passes two stages after the first one, `ready`
(in memory): `write` (handed to the operating system) and `sync` (on the disk).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from penstock.model.events import Event
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.log.batch import Point
from penstock.storage.log.parts import Part
from penstock.storage.log.view import View

Section = tuple[str, bytes, tuple[NDArray[Any], ...]]  # A piece of a snapshot: kind, facts, columns.

# Called with each stage reached, or with the error that ended the commit (and the log).
Progress = Callable[[Stage | BaseException], None]


class BeingFetchedError(Exception):
    """What was to be read is stored elsewhere and is being fetched. Read again when `fetch` is done."""

    def __init__(self, fetch: Future[None]) -> None:
        super().__init__("this part of the log is being fetched")
        self.fetch = fetch


class Recovered(NamedTuple):
    """What was found at start-up: the newest whole snapshot, then the events after it with their positions."""

    sections: Iterable[Section] | None
    events: Iterator[tuple[Event, Position]]


class SnapshotFacts(NamedTuple):
    """A snapshot that counts."""

    offset: int  # It holds all events before this one.
    position: Position  # Where the log ended then.
    time: Nanos
    bytes: int

    @property
    def point(self) -> Point:
        return Point(self.offset, self.position)


class Log(Protocol):
    def recover(self) -> Recovered:
        """Read what is there, once, before the first append. `events` must be read to its end."""

    def close(self) -> None:
        """Close all files. Does not commit."""

    def abandon(self) -> None:
        """After a failure: close, and cut off what is not known to be durable. No client has an answer for it."""

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, event: Event) -> Position:
        """Add an event to the batch that collects. Returns the position of its extent."""

    @property
    def collecting(self) -> int:
        """Bytes in the batch that collects; 0 if there is nothing to commit."""

    @property
    def appended(self) -> Point:
        """Where the log will end once everything appended so far is written."""

    def commit(self, now: Nanos, progress: Progress) -> None:
        """Make the batch that collects durable. One at a time. May call `progress` from another thread."""

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def start(self) -> Point:
        """Where the oldest part begins that was not removed."""

    @property
    def end(self) -> Point:
        """Where the durable part of the log ends."""

    def read(self, position: Position, size: int) -> bytes:
        """An extent, or a piece of it, from memory or disk. Raises `DamagedExtentError`, and `BeingFetchedError`
        rather than wait for another machine. Only for the thread that appends."""

    def require(self, position: Position) -> None:
        """Raises `BeingFetchedError` if a reader of a view would wait for another machine at this position."""

    def view(self) -> View:
        """What is durable now, for readers in any thread."""

    def holds(self, position: Position) -> bool:
        """Has the part with this position not been removed?"""

    @property
    def damaged(self) -> list[tuple[Position, Position]]:
        """The ranges of the log that are known to be damaged."""

    # ── Snapshots and space ─────────────────────────────────────────────────────────────────────────────────

    @property
    def snapshots(self) -> Sequence[SnapshotFacts]:
        """Those that count, newest first."""

    def begin_snapshot(self) -> Point:
        """Where a snapshot is taken now: at `appended`. A log that other machines take over begins its next part
        there or a little before, because they fetch whole parts from the newest snapshot on."""

    def write_snapshot(self, sections: Iterable[Section], at: Point, time: Nanos) -> None:
        """Store the state as of a point durably. It does not count yet. May be called in a forked child."""

    def publish_snapshot(self, offset: int) -> None:
        """Make the snapshot of this offset count, and remove those that are no longer needed."""

    def remove(self, part: Part) -> None:
        """Give back the space of a part; not the newest one, which is being written."""
