"""Commands that shards send to each other, most of them through couriers: see `commands`. No client sends them."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.limits import NEVER_NS
from penstock.model.answers import Parcel
from penstock.model.commands import Command
from penstock.model.settings import QueueSettings
from penstock.model.values import Cursor, LearnedVersion, LentVersion, Nanos


class CollectParcels(Command, frozen=True):
    """What the shard that this is sent to owes to another one after a cursor; it waits until there is something. A
    service carries this out, not the engine. `patterns`: those of the channels there."""

    shard: int  # The one that asks.
    after: Cursor
    patterns: Sequence[str]
    wait_ns: Nanos
    channels: dict[str, tuple[str, ...]] | None = None  # By name: their patterns. None: as in an earlier question.


class ListOwed(Command, frozen=True):
    """The messages that left for a shard, after a serial."""

    shard: int
    after: int
    limit: int


class NoteTaken(Command, frozen=True):
    """A shard has all messages that left for it up to this serial."""

    shard: int
    serial: int


class Admit(Command, frozen=True):
    """Put messages of another shard into their queues, and note how far it has come, in one step. Nothing changes if
    the cursor is not at `at`, or if channels have changed since the messages were asked for. `ahead`: how far the
    clock of this shard is ahead of that of the other. `create`: the settings of queues that are created for it."""

    shard: int  # The one that they come from.
    at: Cursor
    to: Cursor
    channels: int  # The number of changes of channels then.
    parcels: Sequence[Parcel]
    ahead: Nanos
    create: QueueSettings
    versions: Sequence[LearnedVersion] = ()


class Locate(Command, frozen=True):
    """Whether a message is in this shard, and which shards may have it otherwise. `source`: the shard that it left,
    up to this serial."""

    queue: int
    sequence: int
    source: int = -1
    serial: int = 0


class ClaimKey(Command, frozen=True):
    """Remember an idempotency key for a request that is carried out in other shards. Refused if it was used for
    another one. The fields are those of `PublishOnce`."""

    key: bytes
    digest: bytes
    lifetime_ns: Nanos
    keys_max: int


class ReleaseKey(Command, frozen=True):
    """Forget a key that was claimed for a request which was refused."""

    key: bytes
    digest: bytes


class NoteDecided(Command, frozen=True, gc=False):
    """Log what became of commands of another process, in the batch in which they were decided. The fields are those
    of `Decided`."""

    forgotten: int
    origin: bytes
    outcomes: bytes


class LearnChannel(Command, frozen=True):
    """Another shard has a channel with these patterns: answers to publishes name it. Nothing is stored; a service
    carries this out."""

    shard: int
    name: str
    topics: tuple[str, ...]


class CheckDeadLetterQueue(Command, frozen=True):
    """Refused if a queue of this name does not exist here."""

    name: str


class CheckStaged(Command, frozen=True):
    """Whether rows may be staged for these queues of this shard, which must exist, and for topics with these roots,
    which must be no channels."""

    queues: frozenset[str]
    roots: frozenset[str]


class Recall(Command, frozen=True, gc=False):
    """What happened to a message after a time, for somebody who follows it and could not hear of that. A service
    carries this out, not the engine."""

    queue: int
    sequence: int
    since: Nanos


class OpenLoans(Command, frozen=True, gc=False):
    """From now on a shard lends keys only in this session; what it lent before counts no more. Answered when all that
    was decided with the old loans is durable. A service carries this out, not the engine, as the next three."""

    lender: int
    session: int


class KeepLoans(Command, frozen=True, gc=False):
    """Answered when the session has ended: the lender begins another one then."""

    lender: int
    session: int
    wait_ns: Nanos = NEVER_NS


class BorrowKeys(Command, frozen=True, gc=False):
    """Lend a shard the newest versions of these keys. Until it gives them back, nobody else gets them. `Discarded` if
    this is not the session that counts."""

    borrower: int
    session: int
    loan: int
    keys: Sequence[tuple[str, bytes]]  # Objects and keys.


class ReturnKeys(Command, frozen=True, gc=False):
    """Take back what was lent. For each loan: the keys that have new versions by now, which are durable."""

    borrower: int
    session: int
    loans: Sequence[tuple[int, Sequence[tuple[str, bytes, LentVersion]]]]


class NameQueues(Command, frozen=True, gc=False):
    """The names of those of these queues that exist."""

    numbers: Sequence[int]
