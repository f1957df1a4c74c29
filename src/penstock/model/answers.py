"""Answers: what a command returns to its sender."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from penstock.errors import Reason
from penstock.limits import NEVER_NS
from penstock.model.events import Event
from penstock.model.happening import Happening
from penstock.model.schedules import Schedule
from penstock.model.settings import QueueSettings
from penstock.model.tokens import Token
from penstock.model.values import (
    NOWHERE,
    Cursor,
    LearnedVersion,
    LentVersion,
    Nanos,
    Packed,
    Place,
    Position,
    Version,
    Wish,
)


class Refused(Packed, frozen=True):
    reason: Reason
    detail: str = ""
    retry_seconds: float = 1  # After how long the same command may succeed, if it may at all.

    @property
    def sentence(self) -> str:
        """What a person reads. Programs test `reason.code`."""
        return self.reason.explain(self.detail)


CHANGED_MEANWHILE = Refused(Reason.UNAVAILABLE, "somebody else has changed it at the same time")
"""What was to be changed is no longer what its sender has seen, who looks at it again."""


class Receipt(Packed, frozen=True, gc=False):
    """Where a published message is. Not `fresh`: it was there already and nothing was added. Sequence 0: it went
    straight to a consumer and was not stored."""

    queue: int
    sequence: int
    fresh: bool


class Delivery(Struct, gc=False, array_like=True, tag=True):
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


class Published(Packed, frozen=True, gc=False):
    """Where a message is that was published to topics: the place in its id, whether it was queued (Q) or unchanged
    (U), and the names of the queues and channels that have it."""

    queue: int
    sequence: int
    state: Literal["Q", "U"]
    queues: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()


class Repeated(Packed, frozen=True):
    """The answer that a request with the same idempotency key got before. Nothing was stored."""

    published: Sequence[Published]


class Receipts(Packed, frozen=True, gc=False):
    """Where the messages of a `PublishRun` are: `count` of them, one after the other."""

    queue: int
    first: int
    count: int


class Drawn(Struct, array_like=True):
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


class WrongResult(Struct, frozen=True, array_like=True):
    """A result that was not stored."""

    queue: str
    sequence: int
    refused: Refused


class Pulled(Struct, array_like=True, tag=True):
    """What a pull has found; true if there are messages, or results that were wrong."""

    drawn: list[Drawn] = []
    wrong: list[WrongResult] = []
    last: dict[str, int | None] = {}  # By queue: the sequence of its last message, 0 for none, None if it is away.
    due_at: Nanos = NEVER_NS  # When there is something to deliver again.
    refused: Refused | None = None  # Why a part of it was not done, in another shard.

    def __bool__(self) -> bool:
        return bool(self.drawn or self.wrong)


class Received(Struct, array_like=True, tag=True):
    """What a consumer gets from a queue that asks for several confirmations."""

    deliveries: Sequence[Delivery] = ()
    due_at: Nanos = NEVER_NS  # When there is something to deliver again.

    def __bool__(self) -> bool:
        return bool(self.deliveries)


class StoredResult(Struct, array_like=True, tag=True):
    """The shell reads `result` from the log before it answers."""

    receiver: str
    position: Position
    size: int
    result: bytes = b""


class Held(Struct, gc=False, array_like=True, tag=True):
    """A message as its queue holds it. The shell reads `body`, `key` and `headers` from the log before it answers."""

    queue: int
    sequence: int
    id: tuple[int, int]  # Queue and sequence of where it was published.
    state: int  # A `State`.
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
    origin: str = ""  # The queue that it was published to, if that is another one and still there.
    is_awaited: bool = False  # Kept, because consumers have yet to confirm it.
    reason: str = ""  # Why it became a dead letter, shortened.
    body: bytes = b""
    key: bytes = b""
    headers: bytes = b""


class Candidates(Packed, frozen=True, gc=False):
    """Places and sizes of messages, as columns. `after`: as in `Found`."""

    queues: list[int]
    sequences: list[int]
    positions: list[Position]
    body_bytes: list[int]
    key_bytes: list[int]
    after: tuple[int, int] | None


class Found(Struct, gc=False, array_like=True, tag=True):
    """Messages in order. `after`: the place after which to continue; None at the end."""

    messages: list[Held]
    after: tuple[int, int] | None


class Aside(Packed, frozen=True, gc=False):
    """How many messages were set aside. `after`: as in `Found`."""

    messages: int
    after: tuple[int, int] | None


class Redriven(Packed, frozen=True, gc=False):
    """How many messages were moved, and how many could not be: gone, leased, or with no queue to go back to."""

    moved: int
    left: int


class Purged(Packed, frozen=True, gc=False):
    """What one slice of a purge has deleted, and where the next one continues; `after` is None at the end."""

    deleted: int
    number: int
    after: int | None
    last: int


class QueueDescription(Packed, frozen=True):
    name: str
    number: int
    settings: QueueSettings
    messages: int
    ready: int
    leased: int
    delayed: int
    oldest_age_ns: Nanos
    last_sequence: int
    kept: int = 0  # Finished by workers, and still there for receivers.
    damaged: int = 0  # Set aside: their bytes cannot be read.
    created: Nanos = 0  # Only where there are several shards; 0: not known.


class ObjectDescription(Packed, frozen=True):
    """The newest version of an object and a key, and those that are still in the log, newest first."""

    newest: Version
    versions: Sequence[Version]
    queues: dict[int, str]  # The names of the queues that still exist.


class QueueList(Packed, frozen=True):
    total: int
    queues: Sequence[QueueDescription]  # In the order of their creation.


class Claimed(Struct, array_like=True, tag=True):
    """The messages that a consumer has, and how many of those it asked for it has not. The shell reads the bodies."""

    deliveries: list[Delivery]
    missing: int
    following: tuple[int, int] | None = None  # Queue and sequence of the first that the answer had no room for.


class StagedDescription(Packed, frozen=True):
    """How far a query has come: the last batch it has committed, and what is staged for it."""

    committed: int | None
    admitting: int  # Rows of committed batches that are not in their queues yet.
    staged: int  # Rows that are not committed.


class RowsTaken(Packed, frozen=True):
    """The rows of a batch before this chunk and row are in their queues."""

    chunk: int
    row: int


class ScheduleDescription(Packed, frozen=True):
    """A schedule, when it runs next, and what it has done so far."""

    name: str
    definition: Schedule
    next: Nanos  # `NEVER_NS`: it does not.
    runs: int = 0
    missed: int = 0  # Ticks that no message was published for.
    last_run: Nanos = 0
    last_place: Place | None = None  # Of the last message.
    error: str = ""  # Why the last tick has brought no message.
    is_new: bool = False  # The command has created it.


class ScheduleList(Packed, frozen=True):
    total: int
    schedules: Sequence[ScheduleDescription]


class TokenDescription(Packed, frozen=True):
    name: str
    token: Token


class TokenList(Packed, frozen=True):
    total: int
    tokens: Sequence[TokenDescription]


class Owed(Struct, frozen=True, gc=False, array_like=True):
    """A message that left for a queue of another shard, without its bytes: those are in the log of its shard."""

    serial: int
    place: Place  # In its id, which it keeps.
    origin: str  # The queue of that place.
    target: str
    time: Nanos  # When it left.
    created: Nanos
    visible_at: Nanos
    priority: int
    content_type: str
    sender: str
    object: str
    topics: str  # Joined by line feeds.
    lease_ns: Nanos
    position: Position
    body_bytes: int
    key_bytes: int
    headers_bytes: int
    reason: str = ""  # Why it is a dead letter, as far as it is known.


class OwedList(Packed, frozen=True):
    messages: Sequence[Owed]


class Parcel(Struct, frozen=True, gc=False, array_like=True):
    """A message on its way to another shard. Without a target it is a copy for the queues and channels there that its
    topics name."""

    place: Place
    origin: str
    target: str
    time: Nanos
    created: Nanos
    visible_at: Nanos
    expires_at: Nanos  # Of a copy. One that was moved lives as long as the target says.
    options: int  # See `Routed`.
    priority: int
    content_type: str
    sender: str
    object: str
    topics: str
    lease_ns: Nanos
    key: bytes
    headers: bytes
    body: bytes
    reason: str = ""

    @property
    def wish(self) -> int:
        """A `Wish`, if this is no message but a promise: see `Promised`."""
        return self.priority if self.place == NOWHERE else Wish.NONE


class Parcels(Packed, frozen=True):
    """What a shard owes to another, up to a cursor. `now`: the time there. `dead_letters`: the queues there that have
    its dead letters. `versions`: of keys that the other one answers for. `end`: where the log ends; more is not owed
    now."""

    to: Cursor
    now: Nanos
    parcels: Sequence[Parcel]
    dead_letters: Sequence[str] = ()
    versions: Sequence[LearnedVersion] = ()
    end: int = 0


class Loan(Packed, frozen=True, gc=False):
    """The newest versions of keys that a shard lends to another one, in the order in which it asked for them. Empty:
    it lends none, because somebody has one of them for too long."""

    versions: Sequence[LentVersion | None]


class QueueNames(Packed, frozen=True):
    """Queues that exist, by their numbers."""

    names: dict[int, str]


class Location(Packed, frozen=True):
    """Where a message is. `away`: the shards that messages of its queue left for, and the serials of the last.
    `is_due`: it may be among those that left for this shard and are not here yet."""

    here: bool
    away: dict[int, int]
    is_due: bool = False


class Recalled(Packed, frozen=True):
    """What happened to a message, in order."""

    happened: list[Happening]


class Done(Packed, frozen=True):
    """The command was carried out."""


class Discarded(Packed, frozen=True):
    """The outcome of the message was reported before: this one changes nothing."""


class LeasedUntil(Packed, frozen=True):
    """Until when a consumer has a message."""

    visible_at: Nanos


class ScheduledAt(Packed, frozen=True):
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
    | Repeated
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
    | RowsTaken
    | Claimed
    | ScheduleDescription
    | ScheduleList
    | TokenDescription
    | TokenList
    | OwedList
    | Parcels
    | Loan
    | QueueNames
    | Location
)


class Decision(Struct, frozen=True, gc=False):
    """What `decide` returns: events to log and apply, and the answer to give once they are durable."""

    events: Sequence[Event]
    answer: Answer


def refuse(reason: Reason, detail: str = "") -> Decision:
    return Decision((), Refused(reason, detail))
