"""Commands: what a client, or a service of the broker, can ask of the engine. Each is a verb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from penstock.limits import NEVER_NS, SEARCH_ROWS_MAX
from penstock.model.settings import QueueSettings
from penstock.model.values import Key, Nanos, Position


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
    confirm: bool = True  # False: handed over and gone, no confirmation awaited.

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
