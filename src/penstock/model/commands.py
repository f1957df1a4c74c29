"""Commands: what a client, or a service of the broker, can ask of the engine. Each is a verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from penstock.limits import FETCH_BYTES_MAX, NEVER_NS, SEARCH_ROWS_MAX
from penstock.model.access import EVERYTHING, Access
from penstock.model.settings import QueueSettings
from penstock.model.values import Key, Nanos, Packed, Position


class Command(Packed, frozen=True, gc=False):
    """A verb. `Engine.decide` answers it with events and an answer."""


class CreateQueue(Command, frozen=True):
    name: str
    settings: QueueSettings


class UpdateQueue(Command, frozen=True):
    """`fields`: the settings to change, or all. `was`: only if these were its settings until now."""

    name: str
    settings: QueueSettings
    fields: tuple[str, ...] | None = None
    was: QueueSettings | None = None


class DeleteQueue(Command, frozen=True):
    name: str
    was: QueueSettings | None = None  # As in `UpdateQueue`.


class DescribeQueue(Command, frozen=True):
    name: str


class ListQueues(Command, frozen=True):
    offset: int = 0
    limit: int | None = None
    channels: bool = False  # Channels only.
    after: tuple[Nanos, int] = (0, 0)  # Only queues after this time of creation and number, to read a list in parts.
    access: Access = EVERYTHING  # Only what it sees.


class DescribeObject(Command, frozen=True):
    """What is known of an object and a key, and of up to `limit` versions of it."""

    object: str
    key: bytes
    limit: int


class NewMessage(Struct, frozen=True, gc=False, array_like=True):
    """A message as a producer sends it. Absent times are taken from the queue's settings."""

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
    lease_ns: Nanos | None = None  # The lease of a consumer that does not ask for another one.


class Publish(Command, frozen=True, gc=False):
    """`create`: the settings to create the queue with if it does not exist. `fleeting`: a message may go straight to
    a waiting consumer that confirms nothing, without being stored."""

    queue: str
    messages: Sequence[NewMessage]
    create: QueueSettings | None = None
    fleeting: bool = False


class PublishTopics(Command, frozen=True, gc=False):
    """Publish each message to the queues that the roots of its topics name, and to the channels that want one of its
    topics; without a topic to the queue of its object, else to `default`. `create`: the settings of queues that are
    created for it. `queue`: publish to this queue alone, which must exist. All of the messages, or none."""

    messages: Sequence[NewMessage]
    create: QueueSettings
    queue: str = ""


class PublishOnce(Command, frozen=True, gc=False):
    """Publish unless a request with the same key was answered less than `lifetime_ns` ago: then the answer is
    `Repeated`. `digest`: of the request, which must be the same. At most `keys_max` keys are known."""

    publish: PublishTopics
    key: bytes
    digest: bytes
    lifetime_ns: Nanos
    keys_max: int


class Fetch(Command, frozen=True, gc=False):
    """Lease up to `count` messages. `wait_ns`: how long the client waits for a first one. `bytes_max`: of the bodies
    in the answer; a single message always fits. `ahead`: a delivery counts from the `Extend` that begins it."""

    queue: str
    count: int = 1
    wait_ns: Nanos = 0
    lease_ns: Nanos | None = None  # Absent: the message's own, else the queue's visibility timeout.
    consumer: str = ""
    confirm: bool = True  # False: handed over and gone, no confirmation awaited.
    bytes_max: int = FETCH_BYTES_MAX
    ahead: bool = False

    @property
    def waits_for(self) -> tuple[Key, ...]:
        return (self.queue,)


class Finish(Command, frozen=True, gc=False):
    """Confirm a message. With a `consumer`, only if it holds the lease; with a `delivery` (`receives`), that one."""

    queue: int
    sequence: int
    consumer: str | None = None
    delivery: int | None = None
    result: bytes = b""


class FinishMany(Command, frozen=True, gc=False):
    """Confirm several messages, with an answer for each."""

    finishes: Sequence[Finish]


class Release(Command, frozen=True, gc=False):
    """Give a leased message back before its lease ends, to be delivered again after `delay_ns`."""

    queue: int
    sequence: int
    consumer: str | None = None
    delivery: int | None = None
    delay_ns: Nanos = 0


Outcome = Literal["success", "invalid", "not_interested", "retry", "failed"]


class Settle(Command, frozen=True, gc=False):
    """Report the outcome of a message; where several consumers have to confirm, for this one alone. The first outcome
    counts, later ones are discarded. `delay_ns`: until it is delivered again, after a retry. `reason`: why, for a
    message that is given back or invalid. Not `begun`: given back as it was fetched ahead, so that does not count."""

    queue: int
    sequence: int
    outcome: Outcome = "success"
    consumer: str | None = None
    delivery: int | None = None
    delay_ns: Nanos = 0
    result: bytes = b""
    reason: bytes = b""
    begun: bool = True


class SettleMany(Command, frozen=True, gc=False):
    """Settle several messages, with an answer for each."""

    settles: Sequence[Settle]


class Extend(Command, frozen=True, gc=False):
    """Extend the lease of a message to `lease_ns` from now. `begun`: from now on, this delivery counts."""

    queue: int
    sequence: int
    lease_ns: Nanos
    consumer: str | None = None
    delivery: int | None = None
    begun: bool = False


class PublishRun(Command, frozen=True, gc=False):
    """As `Publish`, for many messages that differ only in their bodies, without an object for each. The answer is
    `Receipts`, or that of `Publish`."""

    queue: str
    template: NewMessage  # Its body, key and headers are ignored.
    bodies: list[bytes]
    create: QueueSettings | None = None

    def apart(self) -> Publish:
        template = self.template
        messages = [msgspec.structs.replace(template, body=body) for body in self.bodies]
        return Publish(self.queue, messages, self.create)


class PublishInTurn(Command, frozen=True, gc=False):
    """Publish to one queue after the other until one refuses. The answer is a list, the refusal at its end."""

    publishes: Sequence[Publish | PublishRun]


class Draw(Struct, frozen=True, gc=False, array_like=True):
    """What a receiver wants of one queue."""

    queue: str
    start: int = 0  # 0: on from its cursor; N: from N on; `FROM_NEWEST`, `FROM_NEXT`.
    most: int = 1
    retries: int = 0  # How often a message without a result is delivered again.
    fail_ns: Nanos = 0  # After how long.
    only_new: bool = False  # No message that was delivered before.
    leases: bool = False  # Lease messages even if `retries` is 0, where they leave the queue when finished.
    queue_number: int = 0  # The queue that `start` refers to; a newer one of that name is read from its beginning.

    def key(self, receiver: str) -> Key:
        """What a receiver waits for. Receivers that wait with the same key want the same messages."""
        if self.start in (0, 1):
            return (self.queue, receiver)
        return (self.queue, receiver, self.start, self.queue_number)


FROM_NEWEST = -1  # The newest message, if the receiver has not had it.
FROM_NEXT = -2  # Only messages that are published from now on.


class Pull(Command, frozen=True, gc=False):
    """Store results, then deliver to a receiver what it has not had. If one result is wrong, nothing is delivered."""

    receiver: str
    draws: Sequence[Draw] = ()
    results: Sequence[tuple[str, int, bytes]] = ()  # Queue, sequence, result.
    wait_ns: Nanos = 0
    bytes_max: int = FETCH_BYTES_MAX  # Of the bodies in the answer; a single message always fits.

    @property
    def waits_for(self) -> tuple[Key, ...]:
        return tuple([draw.key(self.receiver) for draw in self.draws])


class Receive(Command, frozen=True, gc=False):
    """Deliver to one of several consumers what it has not had, from a queue that asks for more than one confirmation.
    For any other queue, the same as `Fetch`."""

    queue: str
    consumer: str
    count: int = 1
    wait_ns: Nanos = 0
    lease_ns: Nanos | None = None  # Absent: the queue's visibility timeout.
    bytes_max: int = FETCH_BYTES_MAX  # Of the bodies in the answer; a single message always fits.

    @property
    def waits_for(self) -> tuple[Key, ...]:
        return ((self.queue, self.consumer),)


class AwaitResult(Command, frozen=True, gc=False):
    """The result that `receiver` has sent for a message; without one, that of any receiver."""

    queue: str
    sequence: int
    receiver: str = ""
    wait_ns: Nanos = 0

    @property
    def waits_for(self) -> tuple[Key, ...]:
        return ((self.queue, self.sequence),)


class AwaitMessage(Command, frozen=True, gc=False):
    """Wait for what becomes of a message. A service carries this out, not the engine."""

    queue: int
    sequence: int


class Carry(Command, frozen=True, gc=False):
    """Rewrite messages and results at the end of the log, so that the old segment that holds them can be removed."""

    messages: Sequence[tuple[int, int, Position, bytes]]  # Queue, sequence, position it was read from, extent.
    results: Sequence[tuple[int, int, int, Position, bytes]] = ()  # Queue, sequence, receiver, position, result.


class SetAside(Command, frozen=True, gc=False):
    """Set aside the messages whose bytes are in damaged parts of the log. One command examines a bounded number of
    messages after a place. The answer is `Aside`."""

    ranges: Sequence[tuple[Position, Position]]  # From and to, in order.
    after: tuple[int, int] = (0, 0)


class Restore(Command, frozen=True, gc=False):
    """Restore messages that were set aside and whose bytes can be read again."""

    places: Sequence[tuple[int, int]]


class Delete(Command, frozen=True, gc=False):
    """Remove a message that no consumer has."""

    queue: int
    sequence: int


class Criteria(Struct, frozen=True, kw_only=True, gc=False):
    """Which messages to find; absent criteria match all. The engine has no bodies: others compare `key`, `text`."""

    queue: str = ""
    ids: frozenset[tuple[int, int]] | None = None  # The places in ids, wherever these messages were moved.
    topic: str = ""  # A name, or a prefix that ends in a star.
    states: frozenset[str] = frozenset()  # "ready", "delayed", "leased", "kept", "damaged"; or letters.
    object: str = ""
    since: Nanos = 0
    until: Nanos = NEVER_NS  # Logged at `since` or later, and before `until`.
    ready_since: Nanos = 0
    ready_until: Nanos = NEVER_NS  # Ready since that time: for a dead letter, the time of its failure.
    origin: str = ""  # The queue that it was published to, before it was moved.
    reason: str = ""  # Why it became a dead letter; a star stands for any characters.
    key: bytes | None = None
    text: bytes = b""
    access: Access = EVERYTHING  # Only in queues that it may read.

    @property
    def reads(self) -> bool:
        """Whether the message must be read to decide."""
        return self.key is not None or bool(self.text)


class Search(Command, frozen=True, gc=False):
    """Find up to `limit` messages after a place without changing them, among a bounded number of rows."""

    criteria: Criteria
    after: tuple[int, int] = (0, 0)
    limit: int = 1
    rows: int = SEARCH_ROWS_MAX  # How many to examine; approximate.


class ListCandidates(Command, frozen=True, gc=False):
    """The next candidates after a place; the caller reads the bodies and filters."""

    criteria: Criteria
    after: tuple[int, int] = (0, 0)
    rows: int = SEARCH_ROWS_MAX  # As in `Search`.


class ListHeld(Command, frozen=True, gc=False):
    """The messages at these places that still exist."""

    places: Sequence[tuple[int, int]]


class LookUp(Command, frozen=True, gc=False):
    """One message, if a queue holds it. Refused if it never existed."""

    queue: int
    sequence: int


class ListScheduled(Command, frozen=True, gc=False):
    """The delayed messages that become ready next, among a bounded number after a place."""

    queue: str = ""  # Absent: all queues.
    after: tuple[Nanos, int, int] = (0, 0, 0)  # Time, queue and sequence: only those that are ready later.
    before: Nanos = NEVER_NS  # Only those that are ready before it.
    place: tuple[int, int] = (0, 0)
    limit: int = 1
    rows: int = SEARCH_ROWS_MAX  # As in `Search`.
    access: Access = EVERYTHING  # As in `Criteria`.


class Cancel(Command, frozen=True, gc=False):
    """Delete a message that is still delayed."""

    queue: int
    sequence: int


class Reschedule(Command, frozen=True, gc=False):
    """Change when a message that is still delayed becomes ready."""

    queue: int
    sequence: int
    visible_at: Nanos


class Redrive(Command, frozen=True, gc=False):
    """Move messages that no consumer has to another queue, or each back to the queue it came from."""

    queue: str
    sequences: Sequence[int]
    to: str = ""


class Purge(Command, frozen=True, gc=False):
    """Delete the messages of a queue, one slice after the other. The first slice fixes the queue with this name now
    (`number`) and the messages it has now (up to `last`)."""

    queue: str
    number: int = 0  # 0, here and below: this is the first slice.
    after: int = 0
    last: int = 0


class StageRows(Command, frozen=True, gc=False):
    """Store rows of a batch that may be committed later. The rows of a part come in chunks, one after the other; a
    chunk that is there already is not stored again. A batch that is not committed in time is dropped."""

    query: str
    batch: int
    part: str
    chunk: int  # Counted from 0.
    rows: int
    data: bytes
    queues: frozenset[str]  # These must exist.
    lifetime_ns: Nanos
    bytes_max: int  # The limit for all staged rows together.
    topics: frozenset[str] = frozenset()
    objects: frozenset[str] = frozenset()  # Of rows with a key, which are versions of them.
    elsewhere: frozenset[str] = frozenset()  # Those of the queues that other shards have.


class CommitBatch(Command, frozen=True, gc=False):
    """Admit the rows of these parts to their queues, and drop all others of the batch. A batch that is not newer than
    the last one of its query was committed before: nothing changes."""

    query: str
    batch: int
    parts: Sequence[tuple[str, int]]  # Each with the number of its chunks.


class AdmitRows(Command, frozen=True, gc=False):
    """Publish some rows of a committed batch, and note how far it has come, in one step."""

    query: str
    batch: int
    at: tuple[int, int]  # The chunk and the row of the first one.
    to: tuple[int, int]  # The chunk and the row to continue from.
    publish: Publish | PublishRun | PublishTopics | None  # None: another shard has them.


class TakeRows(Command, frozen=True, gc=False):
    """Publish some rows of a batch that another shard has committed, and note how far it has come here, in one step.
    Rows that are here already are not published again."""

    query: str
    batch: int
    at: tuple[int, int]
    to: tuple[int, int]
    publish: Publish | PublishRun | PublishTopics


class ReadClaimed(Command, frozen=True, gc=False):
    """Read messages that a consumer has leased before, and extend their leases. A message whose lease has run out is
    leased again, unless another consumer has it."""

    claimed: Sequence[tuple[int, int, int]]  # Queue, first and last sequence.
    consumer: str
    lease_ns: Nanos


class FinishClaimed(Command, frozen=True, gc=False):
    """Confirm messages that a consumer has leased before, even if the lease has run out, unless another consumer has
    them."""

    claimed: Sequence[tuple[int, int, int]]
    consumer: str


class DropStaged(Command, frozen=True):
    """Drop a batch that is not committed; without a name, all that were not committed in time."""

    query: str = ""
    batch: int = 0


class DescribeStaged(Command, frozen=True):
    """How far a query has come."""

    query: str


class ForgetNames(Command, frozen=True):
    """Forget some of the names that a sweep has found to be unused."""


class Tick(Command, frozen=True):
    """End the leases and the lifetimes that have run out."""


# Commands that wait up to `wait_ns` if the answer is empty. `waits_for` is what they wait for: a message for the
# workers of a queue (its name) or for a receiver (queue and name, and where it starts), or a result (queue and
# sequence).
Waiting = Fetch | Pull | Receive | AwaitResult

DECIDED_TOGETHER: tuple[type[Command], ...] = (Finish, Settle, Publish, PublishTopics, Fetch)
