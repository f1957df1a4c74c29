"""Events of couriers, which take what one shard owes to another. Only a store with several shards has them.

What leaves a shard is promised by a record in its log. What arrives is logged together with how far the target has
come in the source, so that each message is there once, whatever crashes.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.model.kinds import Event, Kind
from penstock.model.values import Nanos

# Options of messages that go to other shards: it has a delay or a lifetime of its own, or its content is not new, and
# then only queues want it that do not detect that.
OWN_DELAY, OWN_LIFETIME, IS_UNCHANGED = 1, 2, 4


class Routed(Event, frozen=True, gc=False):
    """The topics of these messages are also for queues and channels of other shards. They have consecutive sequences
    and are logged before it in the same batch."""

    kind: ClassVar[Kind] = Kind.ROUTED
    queue: int
    sequence: int
    messages: int
    options: int


class Taken(Event, frozen=True, gc=False):
    """Another shard has all messages that left for it up to this one, durably."""

    kind: ClassVar[Kind] = Kind.TAKEN
    shard: int
    serial: int


class Collected(Event, frozen=True, gc=False):
    """What another shard owed before this offset of its log, and up to this serial of its outbox, is in the log."""

    kind: ClassVar[Kind] = Kind.COLLECTED
    shard: int
    offset: int
    serial: int


class Versioned(Event, frozen=True, gc=False):
    """These messages, logged before it in the same batch, are new versions of their objects and keys. They have
    consecutive sequences. The shards that answer for the keys learn of them."""

    kind: ClassVar[Kind] = Kind.VERSIONED
    queue: int
    sequence: int
    messages: int


class Learned(Event, frozen=True, gc=False):
    """A message of another shard is a new version of an object and a key that this one answers for."""

    kind: ClassVar[Kind] = Kind.LEARNED
    queue: int
    sequence: int
    created: Nanos  # When the message was logged.
    object: int
    key: bytes
    content: bytes  # The digest of its body, as the Object History has it.


class LearnedRun(Event, frozen=True, gc=False):
    """Versions of one object that one queue of another shard stored at one time."""

    kind: ClassVar[Kind] = Kind.LEARNED
    queue: int
    sequence: list[int]
    created: Nanos
    object: int
    keys: list[bytes]
    contents: list[bytes]

    @property
    def records(self) -> int:
        return len(self.keys)


class Promised(Event, frozen=True, gc=False):
    """Another shard is to forget something that it knew before this: a `Wish`, and a name. A courier takes it
    there."""

    kind: ClassVar[Kind] = Kind.PROMISED
    shard: int
    wish: int
    target: bytes


class Decided(Event, frozen=True, gc=False):
    """What became of commands of another process, which were decided in this batch: see `engine/outcomes.py`. The
    `forgotten` oldest of its records are no longer known."""

    kind: ClassVar[Kind] = Kind.DECIDED
    forgotten: int
    origin: bytes  # Names a process, from its start to its end.
    outcomes: bytes  # The engine does not look into it.


SHARD_EVENTS: tuple[type[Event], ...] = (Routed, Taken, Collected, Versioned, Learned, LearnedRun, Decided, Promised)
