"""What is asked of the Event Log, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from penstock.limits import (
    NEVER_NS,
    RANGE_BYTES_DEFAULT,
)
from penstock.model.access import EVERYTHING, Access
from penstock.model.queries import Reading
from penstock.model.values import Nanos, Packed

OFFSET_MAX = (1 << 63) - 1


class From(NamedTuple):
    """An event: the offset of its record, and which of the record's letters it is."""

    offset: int
    part: int = 0


Format = Literal["json", "sse", "arrow"]


class EventQuery(Struct, frozen=True, kw_only=True):
    start: From | Literal["earliest", "latest"] = "earliest"
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
    format: Format = "json"
    is_merged: bool = False  # The stream is one of several, which are merged: as Arrow, it is in frames.
    access: Access = EVERYTHING  # Only events of queues that it may read.


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
