"""Encodes rows of the Event Log for a client: as JSON lines or Server-Sent Events. `arrow_encoder.py` has Arrow.

This runs in a thread beside the event loop; each reader uses one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from penstock.broker.services.lookup import Array
from penstock.limits import PIECE_BYTES
from penstock.model.event_log import From
from penstock.model.times import rfc3339_nanos
from penstock.model.traces import Event
from penstock.model.values import Nanos
from penstock.storage.letters.columns import NUMBERS, PARTS
from penstock.storage.letters.table import Table

TextOf = Callable[[int], str | None]

_EVENTS_AT_ONCE = 256  # Rows that are converted to Python values together.
_EVENT_COLUMNS = tuple(name for name in Event.__struct_fields__ if name != "following")
_PLAIN_COLUMNS = _EVENT_COLUMNS[: len(NUMBERS)]

assert (*NUMBERS, *PARTS) == _EVENT_COLUMNS, "rows without bodies lack the last fields of an event"


class Encoder(Protocol):
    """Encodes rows in one of the formats that a client can ask for."""

    def begin(self, position: From) -> bytes:
        """The first bytes of the stream, possibly none."""

    def encode(self, rows: Table, next_index: Array) -> Iterator[bytes]:
        """Encode rows in bounded pieces. `next_index`: for each row, the index of its record's next letter; 0 for
        none."""

    def reach(self, position: From, passed: Nanos) -> bytes:
        """Where to continue after events that the client did not ask for; nothing if the format cannot say it.
        `passed`: no later event has an earlier time."""

    def catch_up(self, position: From, passed: Nanos) -> bytes:
        """Everything was read that was durable a moment ago. Nothing, but for the one who merges several streams."""

    def beat(self, position: From) -> bytes:
        """Bytes without meaning that keep the connection alive."""

    def end(self) -> bytes: ...


class EventTexts(Protocol):
    """Events as text, one at a time."""

    def lines(self, events: Iterable[Event]) -> Iterator[bytes]: ...

    def sent_events(self, events: Iterable[Event]) -> Iterator[bytes]: ...


class TextEncoder:
    """JSON lines, or Server-Sent Events."""

    def __init__(self, writer: EventTexts, *, sent_events: bool, bodies: bool) -> None:
        self._write = writer.sent_events if sent_events else writer.lines
        self._bodies = bodies
        self._sent_events = sent_events

    def begin(self, position: From) -> bytes:
        # A client that loses the connection before the first event resumes here.
        part = b".%d" % position.part if position.part else b""
        return b"id: %d%b\n\n" % (position.offset, part) if self._sent_events else b""

    def encode(self, rows: Table, next_index: Array) -> Iterator[bytes]:
        piece: list[bytes] = []
        size = 0
        for text in self._write(as_events(rows, next_index, bodies=self._bodies)):
            piece.append(text)
            size += len(text)
            if size >= PIECE_BYTES:
                yield b"".join(piece)
                piece, size = [], 0
        if piece:
            yield b"".join(piece)

    def reach(self, position: From, passed: Nanos) -> bytes:
        del passed
        return b"id: %d\n\n" % position.offset if self._sent_events else b""

    def catch_up(self, position: From, passed: Nanos) -> bytes:
        del position, passed
        return b""

    def beat(self, position: From) -> bytes:
        # An id without data updates the client's position without an event.
        return b": beat\nid: %d\n\n" % position.offset if self._sent_events else b"\n"

    def end(self) -> bytes:
        return b""


class MarkedEncoder(TextEncoder):
    """Server-Sent Events for the one who merges those of several shards: with a mark of what has passed."""

    def reach(self, position: From, passed: Nanos) -> bytes:
        return b": past %b\nid: %d\n\n" % (rfc3339_nanos(passed), position.offset)

    def catch_up(self, position: From, passed: Nanos) -> bytes:
        return b": live %b\nid: %d\n\n" % (rfc3339_nanos(passed), position.offset)


def next_index_of(offsets: Array) -> Array:
    """For each row, the index of the next letter of its record, counted from 0; 0 if it is the last one."""
    if not len(offsets):
        return offsets
    rows = np.arange(len(offsets))
    begins = np.ones(len(offsets), dtype=np.bool_)
    begins[1:] = offsets[1:] != offsets[:-1]
    index = rows - np.maximum.accumulate(np.where(begins, rows, 0)) + 1
    ends = np.append(begins[1:], True)
    index[ends] = 0
    return index


def as_events(rows: Table, next_index: Array, *, bodies: bool) -> Iterator[Event]:
    columns = _EVENT_COLUMNS if bodies else _PLAIN_COLUMNS
    for start in range(0, len(rows), _EVENTS_AT_ONCE):
        part = rows.slice(start, _EVENTS_AT_ONCE)
        following = next_index[start : start + _EVENTS_AT_ONCE].tolist()
        offsets, *others = [part.objects(name) for name in columns]
        yield from map(Event, offsets, following, *others)


def events_in(columns: Mapping[str, list[Any]]) -> Iterator[Event]:
    """As `as_events`, of whole records whose columns are Python values already."""
    following = next_index_of(np.array(columns["offset"], dtype=np.int64)).tolist()
    offsets, *others = [columns[name] for name in _EVENT_COLUMNS]
    return map(Event, offsets, following, *others)
