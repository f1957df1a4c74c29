"""What is asked of the Event Log, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from penstock.limits import (
    NEVER_NS,
    RANGE_BYTES_DEFAULT,
)
from penstock.model.access import EVERYTHING, Access
from penstock.model.streams import Source
from penstock.model.values import Nanos

_OFFSET_MAX = (1 << 63) - 1


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


class RangeQuery(Struct, frozen=True):
    """Whole batches that hold the offsets from `start` up to, and without, `stop`."""

    start: int
    stop: int = _OFFSET_MAX
    bytes_max: int = RANGE_BYTES_DEFAULT


class LogRange(NamedTuple):
    """Whole batches as they are in the log."""

    first: int
    next: int  # The offset after the last event.
    end: int  # The end of the log.
    bytes: int
    source: Source


class LogDescription(NamedTuple):
    format: int
    earliest: int
    end: int
    bytes: int
    parts: Sequence[tuple[int, Nanos]]  # The first offset of each, and when it was created.
    names_from: int
    names_to: int
    texts: Mapping[int, str]
    queues: Mapping[int, str]
