"""Makes pieces of rows of the Event Log, with the text of each event. `arrow_encoder.py` has Arrow.

This runs in a thread beside the event loop; each reader uses one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from penstock.broker.services.lookup import Array
from penstock.limits import PIECE_BYTES
from penstock.model.event_log import Events, EventText, From, place
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
    """Makes pieces for one of the forms that can be asked for: values, or bytes."""

    def begin(self, position: From) -> Any:
        """The first piece of the stream, possibly empty."""

    def encode(self, rows: Table, next_index: Array) -> Iterator[Any]:
        """Encode rows in bounded pieces. `next_index`: for each row, the index of its record's next letter; 0 for
        none."""

    def reach(self, position: From, passed: Nanos) -> Any:
        """Where to continue after events that the client did not ask for; nothing if the form cannot say it.
        `passed`: no later event has an earlier time."""

    def catch_up(self, position: From, passed: Nanos) -> Any:
        """Everything was read that was durable a moment ago."""

    def beat(self, position: From) -> Any:
        """A piece without events that keeps the connection alive."""

    def end(self) -> bytes: ...


class EventTexts(Protocol):
    """Events as text."""

    def text(self, event: Event) -> bytes:
        """Its document without its beginning, which says where it is in the log."""


class Telling:
    """What a reader is told beside events."""

    def begin(self, position: From) -> Events:
        return Events([place(position)], word="begin")

    def reach(self, position: From, passed: Nanos) -> Events:
        return Events([place(position)], word="past", passed=passed)

    def catch_up(self, position: From, passed: Nanos) -> Events:
        return Events([place(position)], word="live", passed=passed)

    def beat(self, position: From) -> Events:
        return Events([place(position)], word="beat")

    def end(self) -> bytes:
        return b""


class TextEncoder(Telling):
    def __init__(self, writer: EventTexts, shard: int, *, bodies: bool) -> None:
        self._text = writer.text
        self._shard = shard
        self._bodies = bodies

    def encode(self, rows: Table, next_index: Array) -> Iterator[Events]:
        events: list[EventText] = []
        size = 0
        for event in as_events(rows, next_index, bodies=self._bodies):
            text = self._text(event)
            events.append(EventText(event.time, self._shard, event.offset, event.next, text))
            size += len(text)
            if size >= PIECE_BYTES:
                yield Events([event.next], events)
                events, size = [], 0
        if events:
            yield Events([events[-1].following], events)


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
