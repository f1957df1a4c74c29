"""The map of all types: settings, commands (verbs), events (past participles) and answers.

Everything here is a plain value. Times are nanoseconds since the epoch, handed in from outside. Queues and other
names that repeat are numbers, defined once by an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Struct

from penstock.errors import Reason
from penstock.limits import NEVER_NS, PUSH_IN_FLIGHT_DEFAULT, PUSH_SECONDS_DEFAULT, SEARCH_ROWS_MAX, SECOND_NS

Nanos = int
Key = str | tuple[str, str] | tuple[str, int] | tuple[str, str, int, int]  # What clients wait for: see `Waiting`.
Position = int  # A byte address in the log: where a message's extent (body, key, headers, digest) begins.


class Stage(IntEnum):
    """How durable something is: in memory, handed to the operating system, on the disk."""

    READY = 0
    WRITE = 1
    SYNC = 2


# ── Settings ──────────────────────────────────────────────────────────────────────────────────────────────


class RedrivePolicy(Struct, frozen=True):
    """After `max_receives` deliveries a message moves to the dead-letter queue."""

    max_receives: int
    dead_letter_queue: str


class Push(Struct, frozen=True):
    """Where the broker takes a channel's messages, instead of waiting for somebody to fetch them."""

    url: str
    max_in_flight: int = PUSH_IN_FLIGHT_DEFAULT
    timeout_ns: Nanos = PUSH_SECONDS_DEFAULT * SECOND_NS


class QueueSettings(Struct, frozen=True, kw_only=True):
    """Everything that can be set on a queue: the union of what the five dialects know. One with topics is a channel:
    it is fed by what is published to them."""

    redrive_policy: RedrivePolicy | None = None
    retention_ns: Nanos = NEVER_NS
    visibility_ns: Nanos = 30_000_000_000
    delay_ns: Nanos = 0
    deduplication: bool = False
    retries: int = 0  # Deliveries in all before a message is dropped; 0: no limit.
    confirmations: int = 1  # Consumers that must confirm before a message is completed.
    detect_unchanged: bool = False
    keep: Literal["finished", "all"] = "finished"  # "finished": confirmed messages leave. "all": they stay.
    topics: tuple[str, ...] = ()  # Names, or beginnings of names with a star at the end.
    confirm: bool = True  # False: no message is awaited to be confirmed, each is handed over and gone (kicked).
    push: Push | None = None

    @property
    def keeps(self) -> bool:
        """Does a message stay when its worker is done with it? It does where others want it too."""
        return self.keep == "all" or self.confirmations > 1

    @property
    def deliveries(self) -> int:
        """After how many a message has failed when its lease ends without a confirmation; 0: it never has. Where one
        confirmation is enough, `max_receives` counts when a message is delivered, not when a lease ends."""
        most = self.redrive_policy.max_receives if self.redrive_policy and self.confirmations > 1 else 0
        return min(self.retries, most) if self.retries and most else self.retries or most

    def to_store(self) -> dict[str, Any]:
        """As they are written to the disk: a setting that came with a later version only if it says something."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return {name: value for name, value in fields.items() if name not in _LATER or value != _LATER[name]}


_LATER: dict[str, Any] = {"topics": (), "confirm": True, "push": None}


Place = tuple[int, int]  # Of a message: queue number and sequence.


class Version(NamedTuple):
    """What is known of an object and a key: a content, by its digest, and the message that brought it."""

    digest: bytes
    queue: int
    sequence: int
    versions: int  # How many there were, this one counted.
    changed: Nanos  # When it was logged.
    position: Position  # Where in the log.


class Compared(NamedTuple):
    """Contents, compared with the newest versions of their keys."""

    places: list[Place | None]  # Of versions that say the same.
    unknown: int  # Keys that have no version.
    seen: Sequence[bytes | None]  # What was read for this, each in the form of the history: to note them asks for it.


class KeyedRun(NamedTuple):
    """Messages with following sequences, about one object: what an Object History wants to know of them."""

    about: str
    keys: Sequence[bytes]
    digests: Sequence[bytes]
    queue: int
    sequence: int  # Of the first.
    time: Nanos
    positions: Sequence[Position]
    seen: Sequence[bytes | None] = ()  # What it has read to compare them just before, if it has.


# ── Commands: what a client can ask ───────────────────────────────────────────────────────────────────────


class Command(Struct, frozen=True, gc=False):
    """A verb. `Engine.decide` answers it with events and an answer."""


class CreateQueue(Command, frozen=True):
    name: str
    settings: QueueSettings


class UpdateQueue(Command, frozen=True):
    """`fields`: those that change, so that a dialect leaves alone what it does not know. Absent: all."""

    name: str
    settings: QueueSettings
    fields: tuple[str, ...] | None = None


class DeleteQueue(Command, frozen=True):
    name: str


class DescribeQueue(Command, frozen=True):
    name: str


class ListQueues(Command, frozen=True):
    offset: int = 0
    limit: int | None = None
    channels: bool = False  # Only those.
    after: int = 0  # Only those with a larger number: a list is read part by part, whatever is removed meanwhile.


class DescribeObject(Command, frozen=True):
    """What is known of an object and a key, and of up to `limit` versions of it."""

    object: str
    key: bytes
    limit: int


class NewMessage(Struct, frozen=True, gc=False):
    """A message as a producer hands it over. Times that are absent: what the queue says."""

    body: bytes
    content_type: str = ""
    priority: int = 0
    sender: str = ""
    object: str = ""
    topics: tuple[str, ...] = ()
    key: bytes = b""
    headers: bytes = b""
    delay_ns: Nanos | None = None
    expires_ns: Nanos | None = None
    lease_ns: Nanos | None = None  # How long a consumer has it that does not say how long it wants it.


class Publish(Command, frozen=True, gc=False):
    """`create`: make the queue if it is not there. `fleeting`: a message may go straight to a consumer that waits and
    wants no confirmation, and be stored nowhere."""

    queue: str
    messages: Sequence[NewMessage]
    create: QueueSettings | None = None
    fleeting: bool = False


class PublishTopics(Command, frozen=True, gc=False):
    """Publish each message to the queues that the roots of its topics name, and to the channels that want one of its
    topics; without a topic to the queue of its object, else to `default`. `create`: the settings of queues that are
    made for it. `queue`: to this one alone, which must be there. All of the messages, or none."""

    messages: Sequence[NewMessage]
    create: QueueSettings
    queue: str = ""


class Fetch(Command, frozen=True, gc=False):
    """Lease up to `count` messages. `wait_ns`: how long the client waits for a first one."""

    queue: str
    count: int = 1
    wait_ns: Nanos = 0
    lease_ns: Nanos | None = None  # Absent: the message's own, else the queue's visibility timeout.
    consumer: str = ""
    confirm: bool = True  # False: handed over and gone (kicked), no confirmation awaited.

    @property
    def waits_for(self) -> tuple[Key, ...]:
        return (self.queue,)


class Finish(Command, frozen=True, gc=False):
    """Confirm a message. With a `consumer`, only if it holds the lease; with a `delivery`, which is the number of
    receives that the delivery told, only if that very lease still runs."""

    queue: int
    sequence: int
    consumer: str | None = None
    delivery: int | None = None
    result: bytes = b""


class FinishMany(Command, frozen=True, gc=False):
    """Confirm several messages; each is answered for itself."""

    finishes: Sequence[Finish]


class Release(Command, frozen=True, gc=False):
    """Give a leased message back before its time, to be delivered again after `delay_ns`."""

    queue: int
    sequence: int
    consumer: str | None = None
    delivery: int | None = None
    delay_ns: Nanos = 0


Outcome = Literal["success", "invalid", "not_interested", "retry"]


class Settle(Command, frozen=True, gc=False):
    """Say what has become of a message. Where several consumers have to confirm, for this one alone. The first word
    counts, a later one is discarded. `delay_ns`: when a message is to be delivered again."""

    queue: int
    sequence: int
    outcome: Outcome = "success"
    consumer: str | None = None
    delivery: int | None = None
    delay_ns: Nanos = 0
    result: bytes = b""


class SettleMany(Command, frozen=True, gc=False):
    """Settle several messages; each is answered for itself."""

    settles: Sequence[Settle]


class Extend(Command, frozen=True, gc=False):
    """Have a message for so much longer, counted from now."""

    queue: int
    sequence: int
    lease_ns: Nanos
    consumer: str | None = None
    delivery: int | None = None


class PublishRun(Command, frozen=True, gc=False):
    """As `Publish`, for many messages that are alike in all but their bodies, without an object for each. The answer
    is `Receipts`, or what `Publish` answers."""

    queue: str
    template: NewMessage  # Its body, key and headers are of no account.
    bodies: list[bytes]
    create: QueueSettings | None = None

    def apart(self) -> Publish:
        template = self.template
        messages = [msgspec.structs.replace(template, body=body) for body in self.bodies]
        return Publish(self.queue, messages, self.create)


class PublishInTurn(Command, frozen=True, gc=False):
    """Publish to one queue after the other until one refuses. The answers as far as that, the refusal among them."""

    publishes: Sequence[Publish | PublishRun]


class Draw(Struct, frozen=True, gc=False):
    """What a receiver wants of one queue."""

    queue: str
    start: int = 0  # 0: on from its cursor; N: from N on; `FROM_NEWEST`, `FROM_NEXT`.
    most: int = 1
    retries: int = 0  # How often a message without a result is delivered again.
    fail_ns: Nanos = 0  # When it is.
    only_new: bool = False  # Nothing again that was delivered before.
    leases: bool = False  # Where the queue's messages leave: lease them, also if `retries` is 0.
    queue_number: int = 0  # The queue that `start` counts in: another one of that name is read from its beginning.

    def key(self, receiver: str) -> Key:
        """What a receiver waits for. Those who wait with the same key want the same messages."""
        if self.start in (0, 1):
            return (self.queue, receiver)
        return (self.queue, receiver, self.start, self.queue_number)


FROM_NEWEST = -1  # The newest message, if the receiver has not had it.
FROM_NEXT = -2  # Nothing that is there already.


class Pull(Command, frozen=True, gc=False):
    """Store results, then deliver to a receiver what it has not had. One wrong result, and nothing is delivered."""

    receiver: str
    draws: Sequence[Draw] = ()
    results: Sequence[tuple[str, int, bytes]] = ()  # Queue, sequence, result.
    wait_ns: Nanos = 0

    @property
    def waits_for(self) -> tuple[Key, ...]:
        return tuple([draw.key(self.receiver) for draw in self.draws])


class Receive(Command, frozen=True, gc=False):
    """Deliver to one of several consumers what it has not had, of a queue that asks for more than one confirmation.
    Of any other queue, as `Fetch`."""

    queue: str
    consumer: str
    count: int = 1
    wait_ns: Nanos = 0
    lease_ns: Nanos | None = None  # Absent: the queue's visibility timeout.

    @property
    def waits_for(self) -> tuple[Key, ...]:
        return ((self.queue, self.consumer),)


class AwaitResult(Command, frozen=True, gc=False):
    """The result of a message. Without a `receiver`: of any."""

    queue: str
    sequence: int
    receiver: str = ""
    wait_ns: Nanos = 0

    @property
    def waits_for(self) -> tuple[Key, ...]:
        return ((self.queue, self.sequence),)


class Carry(Command, frozen=True, gc=False):
    """Rewrite messages and results at the end of the log, so that the old segment that holds them can be removed."""

    messages: Sequence[tuple[int, int, Position, bytes]]  # Queue, sequence, where it was read, the extent.
    results: Sequence[tuple[int, int, int, Position, bytes]] = ()  # Queue, sequence, receiver, the same.


class SetAside(Command, frozen=True, gc=False):
    """Set aside the messages whose bytes lie in damaged parts of the log: of those after a place, as many as one turn
    has time to look at. The answer is `Aside`."""

    ranges: Sequence[tuple[Position, Position]]  # From and to, in order.
    after: tuple[int, int] = (0, 0)


class Restore(Command, frozen=True, gc=False):
    """Take messages back that were set aside: their bytes can be read again."""

    places: Sequence[tuple[int, int]]


class Delete(Command, frozen=True, gc=False):
    """Remove a message that no consumer has."""

    queue: int
    sequence: int


class Criteria(Struct, frozen=True, kw_only=True, gc=False):
    """Which of the messages that queues hold are meant; what is absent does not matter. The engine knows no bodies:
    `key` and `text` are for the shell to compare, and the engine only leaves out what cannot be meant."""

    queue: str = ""
    topic: str = ""  # A name, or a beginning of names with a star at its end.
    states: frozenset[str] = frozenset()  # "ready", "delayed", "leased", "kept", "damaged"; or letters.
    object: str = ""
    since: Nanos = 0
    until: Nanos = NEVER_NS  # Both of when it was logged; this one is not part of the time.
    key: bytes | None = None
    text: bytes = b""

    @property
    def reads(self) -> bool:
        """Can it be decided only by who has read the message?"""
        return self.key is not None or bool(self.text)


class Search(Command, frozen=True, gc=False):
    """Look at messages behind a place, without touching them: so many, or as many as one turn has time for."""

    criteria: Criteria
    after: tuple[int, int] = (0, 0)
    limit: int = 1
    rows: int = SEARCH_ROWS_MAX  # To look at, about.


class ListCandidates(Command, frozen=True, gc=False):
    """The next candidates after a place; the caller reads the bodies and filters."""

    criteria: Criteria
    after: tuple[int, int] = (0, 0)
    rows: int = SEARCH_ROWS_MAX  # As in `Search`.


class ListHeld(Command, frozen=True, gc=False):
    """The messages at some places, as far as they are there."""

    places: Sequence[tuple[int, int]]


class LookUp(Command, frozen=True, gc=False):
    """One message, if a queue holds it. Refused if there never was one."""

    queue: int
    sequence: int


class ListScheduled(Command, frozen=True, gc=False):
    """Of the delayed messages behind a place, as many as one turn has time for, those that become ready next."""

    queue: str = ""  # Absent: of all.
    after: tuple[Nanos, int, int] = (0, 0, 0)  # None that is ready before this: time, queue, sequence.
    before: Nanos = NEVER_NS  # None that is ready later than this.
    place: tuple[int, int] = (0, 0)
    limit: int = 1
    rows: int = SEARCH_ROWS_MAX  # As in `Search`.


class Cancel(Command, frozen=True, gc=False):
    """Take a message away that is still delayed."""

    queue: int
    sequence: int


class Reschedule(Command, frozen=True, gc=False):
    """Let a message that is still delayed become ready at another time."""

    queue: int
    sequence: int
    visible_at: Nanos


class Redrive(Command, frozen=True, gc=False):
    """Move messages of a queue that nobody has to another queue, or each back to where it came from."""

    queue: str
    sequences: Sequence[int]
    to: str = ""


class Purge(Command, frozen=True, gc=False):
    """Delete the messages of a queue, one slice after the other. The first slice fixes what is meant: the queue with
    this name now (`number`) and what it holds now (up to `last`)."""

    queue: str
    number: int = 0  # 0, here and below: this is the first slice.
    after: int = 0
    last: int = 0


class StageRows(Command, frozen=True, gc=False):
    """Keep rows of a batch that may be committed later. Those of a part come in chunks, one after the other; one that
    is there already is not kept again. What is not committed in time goes."""

    query: str
    batch: int
    part: str
    chunk: int  # Counted from 0.
    rows: int
    data: bytes
    queues: frozenset[str]  # That must be there.
    lifetime_ns: Nanos
    bytes_max: int  # Of all that is staged.
    roots: frozenset[str] = frozenset()  # Of the topics: none may be a channel.


class CommitBatch(Command, frozen=True, gc=False):
    """Let the rows of these parts into their queues, and drop all others of the batch. A batch that is not newer than
    the last one of its query was committed before: nothing changes."""

    query: str
    batch: int
    parts: Sequence[tuple[str, int]]  # And how many chunks each has.


class AdmitRows(Command, frozen=True, gc=False):
    """Let some rows of a committed batch into their queue, and note how far it has come, in one step."""

    query: str
    batch: int
    at: tuple[int, int]  # The chunk and the row that it stands at.
    to: tuple[int, int]  # The same, after this step.
    publish: Publish | PublishRun | PublishTopics


class ReadClaimed(Command, frozen=True, gc=False):
    """Read messages that a consumer has leased before, and have them for so much longer. One whose lease has run out
    is leased again, unless somebody else has it."""

    claimed: Sequence[tuple[int, int, int]]  # Queue, first and last sequence.
    consumer: str
    lease_ns: Nanos


class FinishClaimed(Command, frozen=True, gc=False):
    """Confirm messages that a consumer has leased before, also those whose lease has run out, unless somebody else
    has them."""

    claimed: Sequence[tuple[int, int, int]]
    consumer: str


class DropStaged(Command, frozen=True):
    """Forget a batch that is not committed; without a name, all that nobody has committed in time."""

    query: str = ""
    batch: int = 0


class DescribeStaged(Command, frozen=True):
    """How far a query has come."""

    query: str


class ForgetNames(Command, frozen=True):
    """Forget some of the names that a sweep has found to be unused."""


class Tick(Command, frozen=True):
    """Settle the leases and the lifetimes that have run out."""


# Commands that wait if the answer is empty, `wait_ns` at most. Each says what it waits for: a message for the workers
# of a queue (its name), for a receiver (queue and name, and where it starts), or a result (queue and sequence).
Waiting = Fetch | Pull | Receive | AwaitResult


# ── Events: what has happened ─────────────────────────────────────────────────────────────────────────────


class Kind(IntEnum):
    """The number of an event on disk. Never reused, never renumbered."""

    NAME_DEFINED = 1
    QUEUE_CREATED = 2
    QUEUE_CHANGED = 3
    QUEUE_REMOVED = 4
    CARRIED = 5
    RECEIVER_MOVED = 6
    RESULT_CARRIED = 7
    STAGED = 8
    BATCH_COMMITTED = 9
    ADMITTED = 10
    UNSTAGED = 11
    NAME_FORGOTTEN = 12
    LOGGED = 16
    FETCHED = 17
    KICKED = 18
    SUCCEEDED = 19
    RETRIED = 20
    EXASPERATED = 21
    DEAD_LETTERED = 22
    EXPIRED = 23
    DELETED = 24
    DELIVERED = 25
    HANDED_OVER = 26
    RESULT_STORED = 27
    QUEUED = 28
    UNCHANGED = 29
    INVALID = 30
    NOT_INTERESTED = 31
    EXTENDED = 32
    RESCHEDULED = 33
    MOVED = 34
    COMPLETED = 35
    GIVEN_BACK = 36
    FAILED = 37
    DAMAGED = 38
    RESTORED = 39


# What a reader of the Event Log sees of each: a letter, or several that happen together. Housekeeping shows nothing.
LETTERS: dict[Kind, str] = {
    Kind.QUEUE_REMOVED: "D",  # Of the queue, and so of every message in it: one event, which has no sequence.
    Kind.LOGGED: "LQ",
    Kind.FETCHED: "F",
    Kind.KICKED: "K",
    Kind.SUCCEEDED: "SX",  # X only if this confirmation was the last one needed.
    Kind.RETRIED: "R",
    Kind.EXASPERATED: "E",
    Kind.DEAD_LETTERED: "FEQ",  # F only if the delivery that used up the retries is part of the record.
    Kind.EXPIRED: "Z",
    Kind.DELETED: "D",
    Kind.DELIVERED: "F",
    Kind.HANDED_OVER: "K",
    Kind.RESULT_STORED: "S",
    Kind.QUEUED: "Q",
    Kind.UNCHANGED: "LU",
    Kind.INVALID: "I",
    Kind.NOT_INTERESTED: "N",
    Kind.MOVED: "Q",
    Kind.COMPLETED: "X",
    Kind.GIVEN_BACK: "R",
    Kind.FAILED: "E",
    Kind.DAMAGED: "B",
    Kind.RESTORED: "R",
}


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


class HandedOver(MessageEvent, frozen=True, gc=False):
    """Delivered to a receiver for good (K)."""

    kind: ClassVar[Kind] = Kind.HANDED_OVER


class DeliveredRun(MessageRun, frozen=True, gc=False):
    """Messages with following sequences, delivered to one receiver together and for the first time."""

    kind: ClassVar[Kind] = Kind.DELIVERED
    visible_at: Nanos
    leased: bool = False


class HandedOverRun(MessageRun, frozen=True, gc=False):
    """Messages with following sequences, handed over to one receiver together."""

    kind: ClassVar[Kind] = Kind.HANDED_OVER


class GivenBack(Retried, frozen=True, gc=False):
    """The lease of one of several consumers ran out, or it gave the message back (R); for it again from
    `visible_at`."""

    kind: ClassVar[Kind] = Kind.GIVEN_BACK


class Failed(Exasperated, frozen=True, gc=False):
    """One of several consumers has used up its deliveries; the message is dropped, for all of them (E)."""

    kind: ClassVar[Kind] = Kind.FAILED


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


# ── Answers: what the client is told ──────────────────────────────────────────────────────────────────────


class Refused(Struct, frozen=True):
    reason: Reason
    detail: str = ""


class Receipt(Struct, frozen=True, gc=False):
    """Where a published message is. Not `fresh`: it was there already and nothing was added. Sequence 0: it went
    straight to a consumer and was stored nowhere."""

    queue: int
    sequence: int
    fresh: bool


class Delivery(Struct, gc=False):
    """A message on its way to a consumer. The shell reads `body` and `headers` from the log before it answers."""

    queue: int
    sequence: int
    position: Position
    body_bytes: int
    key_bytes: int
    headers_bytes: int
    content_type: str
    sender: str
    priority: int
    receives: int
    created: Nanos
    visible_at: Nanos
    body: bytes = b""
    key: bytes = b""
    headers: bytes = b""
    object: str = ""
    topics: str = ""  # Joined by line feeds.


class Published(Struct, frozen=True, gc=False):
    """Where a message is that was published to topics: the place in its id, whether it was queued (Q) or unchanged
    (U), and the names of the queues and channels that have it."""

    queue: int
    sequence: int
    state: Literal["Q", "U"]
    queues: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()


class Receipts(Struct, frozen=True, gc=False):
    """Where the messages of a `PublishRun` are: `count` of them, one after the other."""

    queue: int
    first: int
    count: int


class Drawn(Struct):
    """Messages of one queue on their way to a receiver, as columns. The shell reads `bodies` and `headers`."""

    queue: str
    sequences: list[int]
    positions: list[Position]
    body_bytes: list[int]
    key_bytes: list[int]
    headers_bytes: list[int]
    senders: list[str]
    created: list[Nanos]
    bodies: list[bytes] = []
    headers: list[bytes] = []


class WrongResult(Struct, frozen=True):
    """A result that was not stored."""

    queue: str
    sequence: int
    refused: Refused


class Pulled(Struct):
    """What a pull has found. It has found something if it holds messages, or results that were wrong."""

    drawn: list[Drawn] = []
    wrong: list[WrongResult] = []
    last: dict[str, int] = {}  # By queue: the sequence of its last message, 0 if there was none.
    due_at: Nanos = NEVER_NS  # When there is something to deliver again.

    def __bool__(self) -> bool:
        return bool(self.drawn or self.wrong)


class Received(Struct):
    """What a consumer gets of a queue that asks for several confirmations."""

    deliveries: Sequence[Delivery] = ()
    due_at: Nanos = NEVER_NS  # When there is something to deliver again.

    def __bool__(self) -> bool:
        return bool(self.deliveries)


class StoredResult(Struct):
    """The shell reads `result` from the log before it answers."""

    receiver: str
    position: Position
    size: int
    result: bytes = b""


class Held(Struct, gc=False):
    """A message as its queue holds it. The shell reads `body`, `key` and `headers` from the log before it answers."""

    queue: int
    sequence: int
    id: tuple[int, int]  # Queue and sequence of where it was published.
    state: int  # As in `engine.lifecycle.State`.
    receives: int
    consumer: str
    priority: int
    position: Position
    body_bytes: int
    key_bytes: int
    headers_bytes: int
    created: Nanos
    visible_at: Nanos
    expires_at: Nanos
    content_type: str
    sender: str
    object: str
    topics: str  # Joined by line feeds.
    is_awaited: bool = False  # Kept, because consumers have yet to confirm it.
    body: bytes = b""
    key: bytes = b""
    headers: bytes = b""


class Candidates(Struct, frozen=True, gc=False):
    """Where messages are, and how large: columns. `after`: as in `Found`."""

    queues: list[int]
    sequences: list[int]
    positions: list[Position]
    body_bytes: list[int]
    key_bytes: list[int]
    after: tuple[int, int] | None


class Found(Struct, gc=False):
    """Messages in order. `after`: behind which place to go on; None if there is nothing behind it."""

    messages: list[Held]
    after: tuple[int, int] | None


class Aside(Struct, frozen=True, gc=False):
    """How many messages were set aside. `after`: as in `Found`."""

    messages: int
    after: tuple[int, int] | None


class Redriven(Struct, frozen=True, gc=False):
    """How many messages were moved, and how many could not be: gone, taken, or with nowhere to go back to."""

    moved: int
    left: int


class Purged(Struct, frozen=True, gc=False):
    """What one slice of a purge has deleted, and where the next one goes on; `after` is None at the end."""

    deleted: int
    number: int
    after: int | None
    last: int


class QueueDescription(Struct, frozen=True):
    name: str
    settings: QueueSettings
    messages: int
    ready: int
    leased: int
    delayed: int
    oldest_age_ns: Nanos
    last_sequence: int
    kept: int = 0  # Done with, and still there for receivers.
    damaged: int = 0  # Set aside: their bytes cannot be read.


class ObjectDescription(Struct, frozen=True):
    """The newest version of an object and a key, and those that are still in the log, newest first."""

    newest: Version
    versions: Sequence[Version]
    queues: dict[int, str]  # The names of those that are there.


class QueueList(Struct, frozen=True):
    total: int
    queues: Sequence[QueueDescription]
    last: int = 0  # The number of the last of them.


class Claimed(Struct):
    """Messages that a consumer has; and of those it asked for, how many it has not. The shell reads the bodies."""

    deliveries: list[Delivery]
    missing: int
    following: tuple[int, int] | None = None  # The first that the answer had no room for: queue and sequence.


class StagedDescription(Struct, frozen=True):
    """How far a query has come: its last batch, if it has committed any, and what is staged for it."""

    committed: int | None
    admitting: int  # Rows of committed batches that are not in their queues yet.
    staged: int  # Rows that are not committed.


class Done(Struct, frozen=True):
    """Nothing more to say."""


class Discarded(Struct, frozen=True):
    """It was said before what has become of the message: this changes nothing."""


class LeasedUntil(Struct, frozen=True):
    """Until when a consumer has a message."""

    visible_at: Nanos


class ScheduledAt(Struct, frozen=True):
    """When a delayed message becomes ready."""

    visible_at: Nanos


Settled = Done | Discarded | Refused


Answer = (
    Refused
    | Done
    | QueueDescription
    | QueueList
    | ObjectDescription
    | Sequence[Receipt]
    | Sequence[Delivery]
    | Sequence[Done | Refused]
    | Sequence[Settled]
    | Sequence[Published]
    | Discarded
    | LeasedUntil
    | ScheduledAt
    | Received
    | Receipts
    | Pulled
    | StoredResult
    | Found
    | Candidates
    | Aside
    | Redriven
    | Purged
    | StagedDescription
    | Claimed
)


class Decision(Struct, frozen=True, gc=False):
    """What `decide` returns: events to log and apply, and the answer to give once they are durable."""

    events: Sequence[Event]
    answer: Answer


def refuse(reason: Reason, detail: str = "") -> Decision:
    return Decision((), Refused(reason, detail))
