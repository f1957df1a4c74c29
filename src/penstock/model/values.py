"""Small values that commands, events and answers share. Times are nanoseconds since the epoch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct

Nanos = int
Key = str | tuple[str, str] | tuple[str, int] | tuple[str, str, int, int]  # What clients wait for: see `Waiting`.
DEFAULT_QUEUE = "default"  # For messages without a topic and an object.
Position = int  # A byte address in the log: where a message's extent (body, key, headers, digest) begins.


class Packed(Struct, frozen=True, array_like=True, tag=True):
    """Between processes it is an array with the name of its type first, so that any of several types can be read."""


class Stage(IntEnum):
    """How durable something is: in memory, handed to the operating system, on the disk."""

    READY = 0
    WRITE = 1
    SYNC = 2


class Wish(IntEnum):
    """What another shard is asked to forget, because it is here now, or nowhere."""

    NONE = 0
    FORGET_SCHEDULE = 1  # The schedule of this name.
    FORGET_DEAD_LETTERS = 2  # The redrive policies that name this queue.


Place = tuple[int, int]  # Queue number and sequence of a message.
NOWHERE: Place = (0, 0)


class Cursor(NamedTuple):
    """How far a shard has come in another one: an offset of its log, and a serial of its outbox."""

    offset: int
    serial: int


class Version(NamedTuple):
    """A version of an object and a key: the digest of its content, and the message that brought it."""

    digest: bytes
    queue: int
    sequence: int
    versions: int  # How many there were, this one counted.
    changed: Nanos  # When it was logged.
    position: Position  # Where in the log.


class LearnedVersion(NamedTuple):
    """A version that one shard has stored and another one answers for."""

    object: str
    key: bytes
    digest: bytes
    queue: int
    sequence: int
    changed: Nanos


class LentVersion(NamedTuple):
    """The newest version of a key that one shard lends to another: what is compared, and where it is."""

    digest: bytes
    queue: int
    sequence: int


class Compared(NamedTuple):
    """Contents, compared with the newest versions of their keys."""

    places: list[Place | None]  # The places of equal versions.
    unknown: int  # Keys that have no version.
    seen: Sequence[bytes | None]  # The versions that were read for it, as the history stores them: `note` needs them.


class KeyedRun(NamedTuple):
    """Messages of one queue about one object: what an Object History stores of them."""

    about: str
    keys: Sequence[bytes]
    digests: Sequence[bytes]
    queue: int
    sequence: int  # The first one.
    time: Nanos
    positions: Sequence[Position]
    seen: Sequence[bytes | None] = ()  # As in `Compared`, if they were just compared.
    sequences: Sequence[int] = ()  # Empty: they are consecutive.

    @property
    def all_sequences(self) -> Sequence[int]:
        return self.sequences or range(self.sequence, self.sequence + len(self.keys))

    def chosen(self, which: Sequence[int]) -> KeyedRun:
        sequences = self.all_sequences
        return KeyedRun(
            self.about,
            [self.keys[at] for at in which],
            [self.digests[at] for at in which],
            self.queue,
            sequences[which[0]],
            self.time,
            [self.positions[at] for at in which],
            sequences=[sequences[at] for at in which],
        )


_control_character = re.compile("[\x00-\x1f\x7f-\x9f]").search


def has_control_characters(text: str) -> bool:
    return _control_character(text) is not None
