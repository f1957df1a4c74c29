"""What is asked of the Event Log, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from penstock.limits import NEVER_NS, RANGE_BYTES_DEFAULT
from penstock.model.queries import Query, Reading
from penstock.model.values import Nanos, Packed

OFFSET_MAX = (1 << 63) - 1


class From(NamedTuple):
    """An event: the offset of its record, and which of the record's letters it is."""

    offset: int
    part: int = 0


class ReadEvents(Reading, frozen=True, kw_only=True):
    """Events in the order of their times: a flow of `Events`, or of bytes in Arrow. Only those of queues that the
    client may read."""

    start: From | Literal["earliest", "latest"] = "earliest"
    starts: tuple[From, ...] = ()  # Of several shards, one each. Empty: all begin at `start`.
    shard: int | None = None  # None: all shards.
    since: Nanos = 0
    until: Nanos = NEVER_NS  # Without it.
    caused_by: str = ""  # Only messages that were published because of the one with this id.
    text: bytes = b""  # Only events with a body that contains it.
    queues: frozenset[str] = frozenset()  # Empty, here and below: all.
    topics: tuple[str, ...] = ()  # Names, or beginnings of names with a star at the end.
    states: str = ""
    follow: bool = False
    limit: int | None = None
    bodies: bool = True
    raw: bool = False  # JSON as text too.
    form: Literal["text", "arrow", "rows"] = "text"  # `rows`: a flow of `Rows`, to be merged.


class EventText(Struct, frozen=True, array_like=True, gc=False):
    """An event, with its document except for where it is."""

    time: Nanos
    shard: int
    offset: int
    following: bytes  # Where a reader that has handled it continues, in its shard.
    text: bytes


Word = Literal["", "begin", "past", "live", "beat"]
"""What a reader is told beside events: where it begins, that it has come past others, that it has read everything
that was there a moment ago, or that the connection is alive."""


class Events(Packed, frozen=True):
    """Some events, and after them perhaps a word on how far the reader has come."""

    reached: list[bytes]  # Where it continues after this, one a shard that it reads.
    events: list[EventText] = field(default_factory=list)
    word: Word = ""
    passed: Nanos = 0  # No later event has an earlier time.

    @property
    def size(self) -> int:
        return sum([len(event.text) for event in self.events])


class Rows(Packed, frozen=True):
    """Events as a record batch of Arrow, in a stream of its own. The column `part` is the next letter of the record,
    0 after its last."""

    time: Nanos  # Of the first event,
    passed: Nanos  # and of the last one.
    following: bytes
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


def parts(query: ReadEvents, shards: int) -> dict[int, Query]:
    """What to ask which shard, so that the answers can be merged."""
    form: Literal["text", "rows"] = "rows" if query.form == "arrow" else "text"
    starts = query.starts or [query.start] * shards
    return {shard: replace(query, start=start, starts=(), form=form) for shard, start in enumerate(starts)}


def place(position: From) -> bytes:
    return b"%d.%d" % position if position.part else b"%d" % position.offset


# ── As it is on the disk ──────────────────────────────────────────────────────────────────────────────────────


class DescribeLog(Reading, frozen=True):
    """Where the log begins and ends, and what numbers in it stand for."""

    names_from: int = 0
    shard: int | None = None  # None: each of all shards.


class ReadLog(Reading, frozen=True):
    """Whole batches that hold the offsets from `start` up to, and without, `stop`: a flow of bytes with the head
    `LogRange`."""

    start: int
    stop: int = OFFSET_MAX
    bytes_max: int = RANGE_BYTES_DEFAULT
    shard: int | None = None


class LogRange(Packed, frozen=True):
    """Whole batches as they are in the log."""

    first: int
    next: int  # The offset after the last event.
    end: int  # The end of the log.
    bytes: int


class LogDescription(Packed, frozen=True):
    log: str  # Its identity,
    ancestors: list[tuple[str, int]]  # and those of the logs that it continues, each with the offset where it does.
    shard: int
    shards: int  # How many the store has.
    format: int
    earliest: int
    end: int
    bytes: int
    parts: list[tuple[int, Nanos]]  # The first offset of each, and when it was created.
    names_from: int
    names_to: int
    texts: dict[int, str]
    queues: dict[int, str]


class LogDescriptions(Packed, frozen=True):
    """Of several shards."""

    logs: list[LogDescription]


def described(_: DescribeLog, logs: Sequence[LogDescription]) -> LogDescriptions:
    return LogDescriptions(list(logs))
