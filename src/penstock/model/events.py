"""Events: what has happened. Each is a past participle, and `Engine.evolve` applies it.

An event has the fields that its row in `kinds.py` lists. Many messages that the same thing happens to are one run: it
has the same fields, some of them as columns, and is written as an event for each message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

from penstock.model.batch_events import Admitted as Admitted
from penstock.model.batch_events import BatchCommitted as BatchCommitted
from penstock.model.batch_events import Staged as Staged
from penstock.model.batch_events import Unstaged as Unstaged
from penstock.model.kinds import MESSAGE_FIELDS, Kind
from penstock.model.kinds import Event as Event
from penstock.model.schedules import SCHEDULE_EVENTS
from penstock.model.settings import QueueSettings
from penstock.model.shard_events import SHARD_EVENTS, LearnedRun
from penstock.model.tokens import TOKEN_EVENTS
from penstock.model.values import Nanos

Numbers = TypeVar("Numbers", int, list[int])  # One for a single event, a column of them for a run.


class NameDefined(Event, frozen=True, gc=False):
    kind: ClassVar[Kind] = Kind.NAME_DEFINED
    number: int
    text: str


class NameForgotten(Event, frozen=True, gc=False):
    """Nothing uses the name any more. The text is repeated for readers that meet the number in older events after the
    definition has left the log."""

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


class _Logged(Event, frozen=True, gc=False):
    queue: int
    sequence: int  # The first one of a run.
    visible_at: Nanos
    expires_at: Nanos
    priority: int
    content_type: int
    sender: int
    object: int
    topics: int
    lease_ns: Nanos  # 0: the queue's.


class Logged(_Logged, frozen=True, gc=False):
    """Received and saved (L), and in the queue, ready or delayed (Q)."""

    kind: ClassVar[Kind] = Kind.LOGGED
    key: bytes
    headers: bytes
    digest: bytes  # SHA-256 of the body where the queue asks for it, else empty.
    body: bytes


class Arrived(Logged, frozen=True, gc=False):
    """A message of another shard enters a queue (Q): a copy, or one that was moved. `created`: there."""

    kind: ClassVar[Kind] = Kind.ARRIVED
    created: Nanos


class LoggedRun(_Logged, frozen=True, gc=False):
    """Messages with consecutive sequences that differ only in their bodies and keys."""

    kind: ClassVar[Kind] = Kind.LOGGED
    bodies: list[bytes]
    keys: Sequence[bytes] = ()  # Empty: none has one.
    contents: Sequence[bytes] = ()  # With keys: the digest of each content, for the Object History …
    seen: Sequence[bytes | None] = ()  # … and what that has read to compare them. Neither is written.

    @property
    def records(self) -> int:
        return len(self.bodies)


class _Queued(Event, Generic[Numbers], frozen=True, gc=False):
    queue: Numbers
    sequence: Numbers
    created: Numbers  # When the original was logged.
    visible_at: Numbers
    expires_at: Numbers
    priority: Numbers
    content_type: Numbers
    sender: Numbers
    object: Numbers
    topics: Numbers
    to_queue: Numbers
    to_sequence: Numbers


class Queued(_Queued[int], frozen=True, gc=False):
    """A message that is in the log already enters one more queue (Q), by reference: it shares the extent of the
    original, which is at `to_queue` and `to_sequence`. Its facts come along for readers of the log."""

    kind: ClassVar[Kind] = Kind.QUEUED


class QueuedRun(_Queued[list[int]], frozen=True, gc=False):
    """Messages that enter queues by reference together. Those of one queue are next to each other, with consecutive
    sequences."""

    kind: ClassVar[Kind] = Kind.QUEUED

    @property
    def records(self) -> int:
        return len(self.queue)


class _Unchanged(Event, Generic[Numbers], frozen=True, gc=False):
    queue: int
    sequence: int  # The first one of a run.
    priority: int
    content_type: int
    sender: int
    object: int
    topics: int
    to_queue: Numbers
    to_sequence: Numbers


class Unchanged(_Unchanged[int], frozen=True, gc=False):
    """Received (L), with the content that its object and key already have (U): archived and not delivered. It has a
    sequence, and so an id, but no place in the queue; the version it equals is at `to_queue` and `to_sequence`."""

    kind: ClassVar[Kind] = Kind.UNCHANGED
    key: bytes
    headers: bytes = b""


class UnchangedRun(_Unchanged[list[int]], frozen=True, gc=False):
    """Messages with consecutive sequences that differ only in their keys, without headers."""

    kind: ClassVar[Kind] = Kind.UNCHANGED
    keys: list[bytes]

    @property
    def records(self) -> int:
        return len(self.keys)


class _OfMessage(Event, Generic[Numbers], frozen=True, gc=False):
    queue: int
    sequence: Numbers
    created: Numbers  # So that waits need no join.
    receives: Numbers
    consumer: Numbers


class MessageEvent(_OfMessage[int], frozen=True, gc=False):
    """What happened to a message that is in a queue."""


class Fetched(MessageEvent, frozen=True, gc=False):
    """Leased to a consumer until `visible_at` (F). `ahead`: it will say when it begins, and counts from then."""

    kind: ClassVar[Kind] = Kind.FETCHED
    visible_at: Nanos
    ahead: bool = False


class MessageRun(_OfMessage[list[int]], frozen=True, gc=False):
    """The same event of several messages of a queue, each of them once."""

    @property
    def records(self) -> int:
        return len(self.sequence)


class FetchedRun(MessageRun, frozen=True, gc=False):
    """Messages with consecutive sequences, leased together."""

    kind: ClassVar[Kind] = Kind.FETCHED
    visible_at: Nanos
    ahead: bool = False


class HandedOverRun(MessageRun, frozen=True, gc=False):
    """Messages with consecutive sequences, handed over together."""

    kind: ClassVar[Kind] = Kind.HANDED_OVER


class SucceededRun(MessageRun, frozen=True, gc=False):
    """Messages confirmed together, each by everyone who had to, without a result."""

    kind: ClassVar[Kind] = Kind.SUCCEEDED


class HandedOver(MessageEvent, frozen=True, gc=False):
    """Handed over, no confirmation awaited (K)."""

    kind: ClassVar[Kind] = Kind.HANDED_OVER


class Succeeded(MessageEvent, frozen=True, gc=False):
    """Confirmed (S); if `complete`, by everyone who had to (X)."""

    kind: ClassVar[Kind] = Kind.SUCCEEDED
    complete: bool
    result: bytes


class Retried(MessageEvent, frozen=True, gc=False):
    """Given back by its consumer (R); to be delivered again from `visible_at`. Earlier versions logged it for a lease
    that ran out, too."""

    kind: ClassVar[Kind] = Kind.RETRIED
    visible_at: Nanos
    reason: bytes = b""  # The consumer's, if it gives one.


class TimedOut(Retried, frozen=True, gc=False):
    """Its lease ran out (R); to be delivered again from `visible_at`. `ahead`: it was never begun, so that `receives`
    is one less than before."""

    kind: ClassVar[Kind] = Kind.TIMED_OUT
    ahead: bool = False


class Failed(MessageEvent, frozen=True, gc=False):
    """Retries used up; dropped (E)."""

    kind: ClassVar[Kind] = Kind.FAILED
    reason: bytes = b""


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
    reason: bytes = b""


class Invalidated(MessageEvent, frozen=True, gc=False):
    """A worker reports that the message is invalid (I), and no worker gets it any more. Earlier versions logged it
    for one of several consumers, too."""

    kind: ClassVar[Kind] = Kind.INVALID
    reason: bytes = b""


class Declined(MessageEvent, frozen=True, gc=False):
    """A worker is not interested in the message (N), and no worker gets it any more. Earlier versions logged it for
    one of several consumers, too."""

    kind: ClassVar[Kind] = Kind.NOT_INTERESTED


class Extended(MessageEvent, frozen=True, gc=False):
    """The consumer has the message until `visible_at`. Readers of the Event Log do not see it. `begun`: it begins now
    with what it has fetched ahead."""

    kind: ClassVar[Kind] = Kind.EXTENDED
    visible_at: Nanos
    begun: bool = False


class Rescheduled(MessageEvent, frozen=True, gc=False):
    """A delayed message becomes ready at `visible_at`. Readers of the Event Log do not see it. `reason`: the last
    consumer of a dead letter gave it back."""

    kind: ClassVar[Kind] = Kind.RESCHEDULED
    visible_at: Nanos
    reason: bytes = b""


class Moved(MessageEvent, frozen=True, gc=False):
    """Moved to another queue by an operator (Q there), in one record."""

    kind: ClassVar[Kind] = Kind.MOVED
    visible_at: Nanos
    expires_at: Nanos
    to_queue: int
    to_sequence: int


class Sent(MessageEvent, frozen=True, gc=False):
    """Moved by an operator to a queue of another shard (D here, Q there)."""

    kind: ClassVar[Kind] = Kind.SENT
    shard: int
    target: bytes  # The name of the queue.


class SentAsDead(Sent, frozen=True, gc=False):
    """Retries used up; moved to a dead-letter queue of another shard (E here, Q there)."""

    kind: ClassVar[Kind] = Kind.SENT_AS_DEAD
    reason: bytes = b""


class CameFrom(MessageEvent, frozen=True, gc=False):
    """A message that arrived was moved, and keeps its id: that of a place in another shard. `origin`: that queue."""

    kind: ClassVar[Kind] = Kind.CAME_FROM
    to_queue: int
    to_sequence: int
    origin: bytes
    reason: bytes = b""  # Why it is a dead letter.


class CopiedFrom(MessageEvent, frozen=True, gc=False):
    """A message that has arrived is a copy; its original is in another shard."""

    kind: ClassVar[Kind] = Kind.COPIED_FROM
    to_queue: int
    to_sequence: int


class Completed(MessageEvent, frozen=True, gc=False):
    """Confirmed by as many consumers as the queue asks for (X)."""

    kind: ClassVar[Kind] = Kind.COMPLETED


class Expired(MessageEvent, frozen=True, gc=False):
    """Past its lifetime or the queue's retention (Z)."""

    kind: ClassVar[Kind] = Kind.EXPIRED


class Deleted(MessageEvent, frozen=True, gc=False):
    """Deleted by an operator (D)."""

    kind: ClassVar[Kind] = Kind.DELETED


class Damaged(MessageEvent, frozen=True, gc=False):
    """Its bytes on disk are damaged and cannot be read (B, broken): set aside and not delivered."""

    kind: ClassVar[Kind] = Kind.DAMAGED


class Restored(Retried, frozen=True, gc=False):
    """Its bytes can be read again, because the segment was restored (R): to be delivered from `visible_at`, or, if
    that never comes, only to receivers."""

    kind: ClassVar[Kind] = Kind.RESTORED


class Carried(MessageEvent, frozen=True, gc=False):
    """Copied to the end of the log so that its old segment can be removed. A message that shares its extent with one
    that was carried before refers to that one, and has no extent of its own."""

    kind: ClassVar[Kind] = Kind.CARRIED
    extent: bytes
    to_queue: int = 0
    to_sequence: int = 0


# Each receiver has its own view of a queue that keeps everything: nothing here changes the message for others.
# `consumer` is the receiver, and `receives` counts the deliveries to it alone.


class Delivered(MessageEvent, frozen=True, gc=False):
    """Delivered to a receiver that is to send a result (F), and again from `visible_at` if none comes. `leased`: to
    one of several consumers that have to confirm it, which has it until `visible_at`."""

    kind: ClassVar[Kind] = Kind.DELIVERED
    visible_at: Nanos
    leased: bool = False


class HandedToReceiver(MessageEvent, frozen=True, gc=False):
    """Delivered to a receiver for good (K)."""

    kind: ClassVar[Kind] = Kind.HANDED_TO_RECEIVER


class DeliveredRun(MessageRun, frozen=True, gc=False):
    """Messages with consecutive sequences, delivered to one receiver together and for the first time."""

    kind: ClassVar[Kind] = Kind.DELIVERED
    visible_at: Nanos
    leased: bool = False


class HandedToReceiverRun(MessageRun, frozen=True, gc=False):
    """Messages with consecutive sequences, handed over to one receiver together."""

    kind: ClassVar[Kind] = Kind.HANDED_TO_RECEIVER


class GivenBack(Retried, frozen=True, gc=False):
    """One of several consumers gave the message back, or its lease ran out (R); delivered to it again from
    `visible_at`."""

    kind: ClassVar[Kind] = Kind.GIVEN_BACK


class InvalidatedForOne(Invalidated, frozen=True, gc=False):
    """One of several consumers reports that the message is invalid (I). The others still want it."""

    kind: ClassVar[Kind] = Kind.INVALID_FOR_ONE


class DeclinedForOne(Declined, frozen=True, gc=False):
    """One of several consumers is not interested in the message (N). The others still want it."""

    kind: ClassVar[Kind] = Kind.NOT_INTERESTED_FOR_ONE


class FailedForAll(Failed, frozen=True, gc=False):
    """One of several consumers has used up its deliveries; the message is dropped for all of them (E)."""

    kind: ClassVar[Kind] = Kind.FAILED_FOR_ALL


class ResultStored(MessageEvent, frozen=True, gc=False):
    """A receiver has sent its result (S)."""

    kind: ClassVar[Kind] = Kind.RESULT_STORED
    result: bytes


class ResultCarried(MessageEvent, frozen=True, gc=False):
    """A result was copied to the end of the log so that its old segment can be removed."""

    kind: ClassVar[Kind] = Kind.RESULT_CARRIED
    result: bytes


class ReceiverMoved(Event, frozen=True, gc=False):
    """A receiver has skipped everything up to `sequence`. No longer written."""

    kind: ClassVar[Kind] = Kind.RECEIVER_MOVED
    queue: int
    sequence: int
    consumer: int


class Answered(Event, frozen=True, gc=False):
    """A publish with an idempotency key was answered: its messages are in the same batch. The `forgotten` oldest keys
    are no longer known. Readers of the Event Log do not see it."""

    kind: ClassVar[Kind] = Kind.ANSWERED
    forgotten: int
    key: bytes
    digest: bytes  # SHA-256 of the request.
    answer: bytes


def _concrete(base: type[Event]) -> Iterator[type[Event]]:
    """The classes derived from `base` that have a kind."""
    for event in base.__subclasses__():
        if "kind" in vars(event):
            yield event
        yield from _concrete(event)


EVENTS: tuple[type[Event], ...] = tuple(_concrete(Event))
assert {*SCHEDULE_EVENTS, *TOKEN_EVENTS, *SHARD_EVENTS} < {*EVENTS}, "every event is among them"
RUNS = (LoggedRun, QueuedRun, UnchangedRun, MessageRun, LearnedRun)
_SINGLE = {event.kind: event for event in EVENTS if not issubclass(event, RUNS)}
assert _SINGLE.keys() == set(Kind)
for _kind, _event in _SINGLE.items():
    _stored = MESSAGE_FIELDS + _kind.row.stores if issubclass(_event, MessageEvent) else _kind.row.stores
    assert _event.__struct_fields__ == ("time", *_stored), f"{_event.__name__} does not have the fields of its row"
