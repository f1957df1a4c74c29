"""Events: what has happened. Each is a past participle, and `Engine.evolve` applies it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from msgspec import Struct

from penstock.model.kinds import MESSAGE_FIELDS, Kind
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos


class Event(Struct, frozen=True, gc=False):
    """Something that happened. `Engine.evolve` applies it, live and in replay alike."""

    kind: ClassVar[Kind]
    time: Nanos


class NameDefined(Event, frozen=True, gc=False):
    kind: ClassVar[Kind] = Kind.NAME_DEFINED
    number: int
    text: str


class NameForgotten(Event, frozen=True, gc=False):
    """Nobody uses the name any more. The text is said once more, for whoever meets the number in older events after
    the definition has left the log."""

    kind: ClassVar[Kind] = Kind.NAME_FORGOTTEN
    number: int
    text: str


class QueueCreated(Event, frozen=True, gc=False):
    kind: ClassVar[Kind] = Kind.QUEUE_CREATED
    queue: int
    name: str
    settings: QueueSettings


class QueueChanged(Event, frozen=True, gc=False):
    kind: ClassVar[Kind] = Kind.QUEUE_CHANGED
    queue: int
    settings: QueueSettings


class QueueRemoved(Event, frozen=True, gc=False):
    """The queue is gone, and with it every message it held (deleted, D)."""

    kind: ClassVar[Kind] = Kind.QUEUE_REMOVED
    queue: int


class Logged(Event, frozen=True, gc=False):
    """Received and saved (L), and in the queue, ready or delayed (Q)."""

    kind: ClassVar[Kind] = Kind.LOGGED
    queue: int
    sequence: int
    visible_at: Nanos
    expires_at: Nanos
    priority: int
    content_type: int
    sender: int
    object: int
    topics: int
    lease_ns: Nanos  # 0: what the queue says.
    key: bytes
    headers: bytes
    digest: bytes  # SHA-256 of the body where the queue asks for it, else empty.
    body: bytes


class LoggedRun(Event, frozen=True, gc=False):
    """Several messages logged together, alike in all but their bodies and keys: the same as a `Logged` for each, and
    written as such. It only exists because one step for all of them is so much cheaper than a step for each."""

    kind: ClassVar[Kind] = Kind.LOGGED
    queue: int
    sequence: int  # Of the first.
    visible_at: Nanos
    expires_at: Nanos
    priority: int
    content_type: int
    sender: int
    object: int
    topics: int
    lease_ns: Nanos
    bodies: list[bytes]
    keys: Sequence[bytes] = ()  # Empty: none has one.
    contents: Sequence[bytes] = ()  # With keys: the digest of each content, for the Object History …
    seen: Sequence[bytes | None] = ()  # … and what that has read to compare them. Neither is written.


class Queued(Event, frozen=True, gc=False):
    """A message that is in the log already enters one more queue (Q), by reference: it shares the extent of the
    original, whose place is `to_queue` and `to_sequence`. What a reader wants to know comes along."""

    kind: ClassVar[Kind] = Kind.QUEUED
    queue: int
    sequence: int
    created: Nanos  # When the original was logged.
    visible_at: Nanos
    expires_at: Nanos
    priority: int
    content_type: int
    sender: int
    object: int
    topics: int
    to_queue: int
    to_sequence: int


class QueuedRun(Event, frozen=True, gc=False):
    """Several messages that enter queues by reference together, as columns: the same as a `Queued` for each, and
    written as such. Those of one queue stand together, with following sequences."""

    kind: ClassVar[Kind] = Kind.QUEUED
    queues: list[int]
    sequences: list[int]
    created: list[Nanos]
    visible_at: list[Nanos]
    expires_at: list[Nanos]
    priorities: list[int]
    content_types: list[int]
    senders: list[int]
    objects: list[int]
    topics: list[int]
    to_queues: list[int]
    to_sequences: list[int]

    def apart(self) -> list[Queued]:
        columns = [getattr(self, name) for name in self.__struct_fields__[1:]]
        return [Queued(self.time, *facts) for facts in zip(*columns, strict=True)]


class Unchanged(Event, frozen=True, gc=False):
    """Received (L), and found to say what is known already of its object and key (U): archived, and delivered to
    nobody. It has a sequence, and so an id, but no place in the queue; the version it equals is at `to_queue` and
    `to_sequence`."""

    kind: ClassVar[Kind] = Kind.UNCHANGED
    queue: int
    sequence: int
    priority: int
    content_type: int
    sender: int
    object: int
    topics: int
    to_queue: int
    to_sequence: int
    key: bytes
    headers: bytes = b""


class UnchangedRun(Event, frozen=True, gc=False):
    """Several messages that have not changed, alike in all but their keys, and without headers: the same as an
    `Unchanged` for each, and written as such."""

    kind: ClassVar[Kind] = Kind.UNCHANGED
    queue: int
    sequence: int  # Of the first.
    priority: int
    content_type: int
    sender: int
    object: int
    topics: int
    to_queues: list[int]
    to_sequences: list[int]
    keys: list[bytes]


class MessageEvent(Event, frozen=True, gc=False):
    """What happened to a message later. `created` comes along, so that waits need no join."""

    queue: int
    sequence: int
    created: Nanos
    receives: int
    consumer: int


class Fetched(MessageEvent, frozen=True, gc=False):
    """Leased to a consumer until `visible_at` (F)."""

    kind: ClassVar[Kind] = Kind.FETCHED
    visible_at: Nanos


class MessageRun(Event, frozen=True, gc=False):
    """The same event of several messages of a queue: the same as one for each, and written as such."""

    queue: int
    sequences: list[int]  # Each once.
    created: list[Nanos]
    receives: list[int]
    consumers: list[int]


class FetchedRun(MessageRun, frozen=True, gc=False):
    """Messages with following sequences, leased together."""

    kind: ClassVar[Kind] = Kind.FETCHED
    visible_at: Nanos


class KickedRun(MessageRun, frozen=True, gc=False):
    """Messages with following sequences, handed over together."""

    kind: ClassVar[Kind] = Kind.KICKED


class SucceededRun(MessageRun, frozen=True, gc=False):
    """Messages confirmed together, each by everyone who had to, without a result."""

    kind: ClassVar[Kind] = Kind.SUCCEEDED


class Kicked(MessageEvent, frozen=True, gc=False):
    """Handed over, no confirmation awaited (K)."""

    kind: ClassVar[Kind] = Kind.KICKED


class Succeeded(MessageEvent, frozen=True, gc=False):
    """Confirmed (S); if `complete`, by everyone who had to (X)."""

    kind: ClassVar[Kind] = Kind.SUCCEEDED
    complete: bool
    result: bytes


class Retried(MessageEvent, frozen=True, gc=False):
    """The lease ran out or was given back (R); to be delivered again from `visible_at`."""

    kind: ClassVar[Kind] = Kind.RETRIED
    visible_at: Nanos


class Exasperated(MessageEvent, frozen=True, gc=False):
    """Retries used up; dropped (E)."""

    kind: ClassVar[Kind] = Kind.EXASPERATED


class DeadLettered(MessageEvent, frozen=True, gc=False):
    """Retries used up; moved to the dead-letter queue (E, then Q there), in one record.

    `fetched`: the delivery that used them up is part of it (F first), so that the consumer still holds the
    message and it shows in the dead-letter queue only if it is not finished by `visible_at`.
    """

    kind: ClassVar[Kind] = Kind.DEAD_LETTERED
    fetched: bool
    visible_at: Nanos
    expires_at: Nanos
    to_queue: int
    to_sequence: int


class Invalidated(MessageEvent, frozen=True, gc=False):
    """The consumer says that the message is invalid (I): it is done with it."""

    kind: ClassVar[Kind] = Kind.INVALID


class Declined(MessageEvent, frozen=True, gc=False):
    """The consumer is not interested in the message (N): it is done with it."""

    kind: ClassVar[Kind] = Kind.NOT_INTERESTED


class Extended(MessageEvent, frozen=True, gc=False):
    """The consumer has the message until `visible_at`: of no interest to a reader."""

    kind: ClassVar[Kind] = Kind.EXTENDED
    visible_at: Nanos


class Rescheduled(MessageEvent, frozen=True, gc=False):
    """A delayed message becomes ready at `visible_at`: of no interest to a reader."""

    kind: ClassVar[Kind] = Kind.RESCHEDULED
    visible_at: Nanos


class Moved(MessageEvent, frozen=True, gc=False):
    """Taken to another queue by an operator (Q there), in one record."""

    kind: ClassVar[Kind] = Kind.MOVED
    visible_at: Nanos
    expires_at: Nanos
    to_queue: int
    to_sequence: int


class Completed(MessageEvent, frozen=True, gc=False):
    """As many consumers as the queue asks for have confirmed (X)."""

    kind: ClassVar[Kind] = Kind.COMPLETED


class Expired(MessageEvent, frozen=True, gc=False):
    """Past its lifetime or the queue's retention (Z)."""

    kind: ClassVar[Kind] = Kind.EXPIRED


class Deleted(MessageEvent, frozen=True, gc=False):
    """Taken away by an operator (D)."""

    kind: ClassVar[Kind] = Kind.DELETED


class Damaged(MessageEvent, frozen=True, gc=False):
    """Its bytes on the disk are damaged and cannot be read (B, broken): set aside, delivered to nobody."""

    kind: ClassVar[Kind] = Kind.DAMAGED


class Restored(Retried, frozen=True, gc=False):
    """Its bytes can be read again, because somebody has put the segment back (R): to be delivered from `visible_at`,
    or, if that never comes, only to receivers."""

    kind: ClassVar[Kind] = Kind.RESTORED


class Carried(MessageEvent, frozen=True, gc=False):
    """Written again further up the log, unchanged: housekeeping, no event to a reader. A message that shares its
    extent with one that has just been carried says where that is, and has no extent of its own."""

    kind: ClassVar[Kind] = Kind.CARRIED
    extent: bytes
    to_queue: int = 0
    to_sequence: int = 0


# Receivers have their own view of a queue that keeps everything: nothing here changes the message itself. `consumer`
# is the receiver, `receives` counts the deliveries to it alone.


class Delivered(MessageEvent, frozen=True, gc=False):
    """Delivered to a receiver that is to send a result (F); without one, again from `visible_at`. `leased`: to one of
    several consumers that have to confirm it, which has it until then."""

    kind: ClassVar[Kind] = Kind.DELIVERED
    visible_at: Nanos
    leased: bool = False


class HandedToReceiver(MessageEvent, frozen=True, gc=False):
    """Delivered to a receiver for good (K)."""

    kind: ClassVar[Kind] = Kind.HANDED_TO_RECEIVER


class DeliveredRun(MessageRun, frozen=True, gc=False):
    """Messages with following sequences, delivered to one receiver together and for the first time."""

    kind: ClassVar[Kind] = Kind.DELIVERED
    visible_at: Nanos
    leased: bool = False


class HandedToReceiverRun(MessageRun, frozen=True, gc=False):
    """Messages with following sequences, handed over to one receiver together."""

    kind: ClassVar[Kind] = Kind.HANDED_TO_RECEIVER


class GivenBack(Retried, frozen=True, gc=False):
    """The lease of one of several consumers ran out, or it gave the message back (R); for it again from
    `visible_at`."""

    kind: ClassVar[Kind] = Kind.GIVEN_BACK


class FailedForAll(Exasperated, frozen=True, gc=False):
    """One of several consumers has used up its deliveries; the message is dropped, for all of them (E)."""

    kind: ClassVar[Kind] = Kind.FAILED_FOR_ALL


class ResultStored(MessageEvent, frozen=True, gc=False):
    """A receiver has sent its result (S)."""

    kind: ClassVar[Kind] = Kind.RESULT_STORED
    result: bytes


class ResultCarried(MessageEvent, frozen=True, gc=False):
    """A result written again further up the log: housekeeping, no event to a reader."""

    kind: ClassVar[Kind] = Kind.RESULT_CARRIED
    result: bytes


class ReceiverMoved(Event, frozen=True, gc=False):
    """A receiver has passed over everything up to `sequence`: of no interest to a reader."""

    kind: ClassVar[Kind] = Kind.RECEIVER_MOVED
    queue: int
    sequence: int
    consumer: int


# Batches of a stream processor, which are to count once and whole. None of this is of interest to a reader: what
# comes of it are messages, logged as all others.


class Staged(Event, frozen=True, gc=False):
    """Rows were received and saved. They are nobody's messages yet."""

    kind: ClassVar[Kind] = Kind.STAGED
    query: str
    batch: int
    part: str
    chunk: int
    rows: int
    expires_at: Nanos
    data: bytes


class BatchCommitted(Event, frozen=True, gc=False):
    """What is staged in these parts counts, and all else of the batch does not."""

    kind: ClassVar[Kind] = Kind.BATCH_COMMITTED
    query: str
    batch: int
    parts: tuple[str, ...]


class Admitted(Event, frozen=True, gc=False):
    """The rows of a committed batch before this one of this chunk are in their queues."""

    kind: ClassVar[Kind] = Kind.ADMITTED
    query: str
    batch: int
    chunk: int
    row: int


class Unstaged(Event, frozen=True, gc=False):
    """A batch that was not committed is forgotten."""

    kind: ClassVar[Kind] = Kind.UNSTAGED
    query: str
    batch: int


def _concrete(base: type[Event]) -> Iterator[type[Event]]:
    """The classes that have a kind, of all that are derived from one."""
    for event in base.__subclasses__():
        if "kind" in vars(event):
            yield event
        yield from _concrete(event)


EVENTS: tuple[type[Event], ...] = tuple(_concrete(Event))
_SINGLE = {event.kind: event for event in EVENTS if not event.__name__.endswith("Run")}
assert _SINGLE.keys() == set(Kind)
for _kind, _event in _SINGLE.items():
    _stored = MESSAGE_FIELDS + _kind.row.stores if issubclass(_event, MessageEvent) else _kind.row.stores
    assert _event.__struct_fields__ == ("time", *_stored), f"{_event.__name__} is not what the table of kinds says"
