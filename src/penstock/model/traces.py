"""What is known about a message, as it was read from the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from penstock.model.answers import Held
from penstock.model.events import Event as LogEvent
from penstock.model.events import Logged
from penstock.model.kinds import State
from penstock.model.story import Story
from penstock.model.values import Nanos, Place

WORDS = {
    "L": "logged",
    "U": "unchanged",
    "Q": "queued",
    "F": "fetched",
    "K": "kicked",
    "S": "success",
    "X": "completed",
    "R": "retry",
    "E": "exasperated",
    "I": "invalid",
    "N": "not interested",
    "Z": "expired",
    "D": "deleted",
    "B": "broken",
}

TextOf = Callable[[int], str | None]  # What the number of a name stands for.


class Event(Struct, gc=False):
    """One letter of a record, with everything that is known about it. Names are numbers; 0 or None is no name."""

    offset: int
    following: int  # Which letter of the same record comes next, counted from 0; 0 if this was the last one.
    letter: str
    kind: int
    time: Nanos
    queue: int
    sequence: int | None  # None, as the next: it is about the whole queue.
    created: Nanos | None
    visible_at: Nanos | None
    expires_at: Nanos | None
    priority: int | None
    receives: int
    consumer: int
    content_type: int
    sender: int
    object: int
    topics: int
    to_queue: int | None
    to_sequence: int | None
    body: bytes | None = None
    result: bytes | None = None
    key: bytes | None = None
    headers: bytes | None = None
    digest: bytes | None = None

    @property
    def next(self) -> bytes:
        """Where a reader that has handled this event continues."""
        return b"%d" % (self.offset + 1) if not self.following else b"%d.%d" % (self.offset, self.following)


STATUS = tuple(state.name.lower() for state in State)


def is_queued(message: Held) -> bool:
    """A kept message is done, unless more consumers have to confirm it."""
    return STATUS[message.state] != "kept" or message.is_awaited


class Traced(NamedTuple):
    """Everything that is known about a message, as it was read."""

    place: Place
    story: Story
    content: Logged | None  # The message whose content it shares, if that is not in the story.
    held: Mapping[Place, Held]  # By the places that have it.
    records: Sequence[tuple[int, LogEvent]]  # With their offsets.
    events: Iterable[Event]  # The same: one for each letter of a record.
    whole: bool
    name: TextOf
    queue: TextOf
