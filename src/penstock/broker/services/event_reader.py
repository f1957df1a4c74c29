"""One reader of the Event Log: turns bytes on disk into pieces for the client, each of them bounded.

This runs in a thread beside the event loop; each reader uses one thread at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.broker.services.event_encoders import Encoder, TextOf, next_index_of
from penstock.broker.services.lookup import Array, Lookup
from penstock.broker.services.topic_filter import TopicFilter
from penstock.limits import READ_BYTES
from penstock.model.access import Access
from penstock.model.event_log import From, ReadEvents
from penstock.model.kept_headers import cause_bytes
from penstock.model.values import Nanos, Position
from penstock.storage.letters.table import Table, table_of
from penstock.storage.log.view import Cursor, View

_HELD_PER_BYTE = 3  # Of the log: the batches, what is cut out of them, and the text that is made of that.


class EventReader:
    """Reads the events that a query asks for."""

    def __init__(
        self,
        query: ReadEvents,
        access: Access,
        start: From,
        position: Position,
        name: TextOf,
        queue: TextOf,
        encoder: Encoder,
    ) -> None:
        self._start = start
        self._since, self._until = query.since, query.until
        self._cause = cause_bytes(query.caused_by) if query.caused_by else b""
        self._text = query.text
        self._is_over = False
        self._left = query.limit
        self._encoder = encoder
        self._cursor = Cursor(position)
        self._states = _letters(query.states) if query.states else None
        wanted = query.queues
        self._queues: Lookup | None = None
        if wanted or not access.sees_all:
            self._queues = Lookup(lambda number: int(_is_chosen(queue(number), wanted, access)))
        matching = Lookup(lambda number: int(_matches(name(number), query.topics)))
        self._topics = TopicFilter(lambda numbers: matching(numbers) == 1, start.offset) if query.topics else None
        self.next = start
        self.held_bytes = 0  # What the next pieces are made of. 0: it is read with the next one.
        self._passed: Nanos = 0  # No later event has an earlier time.

    @property
    def exhausted(self) -> bool:
        """Whether the query's limit, or its time, is reached."""
        return self._left == 0 or self._is_over

    def next_bytes(self, view: View) -> int:
        """How much memory the next piece takes, with what it is made of."""
        return _HELD_PER_BYTE * self._cursor.next_bytes(view, READ_BYTES)

    def begin(self) -> Any:
        return self._encoder.begin(self._start)

    def read(self, view: View) -> Generator[Any, None, None]:
        """The matching events up to the end of a view, in bounded pieces. If none of the events read for it match, a
        piece has at most how far the reader has come."""
        while not self.exhausted and (batches := self._cursor.read(view, READ_BYTES)):
            self.held_bytes = _HELD_PER_BYTE * sum([header.total_bytes for header, _ in batches])
            rows = table_of(batches)
            if self._topics:
                for _ in self._topics.look_back(view, rows, batches[0][0]):
                    yield b""
                self._topics.learn(rows)
            last = batches[-1][0]
            self._is_over = last.time >= self._until
            self.next = From(last.base_offset + last.records)
            if len(rows):
                self._passed = int(rows.numbers("time").values[-1])
            rows, next_index = self._chosen(rows)
            if self._left is not None:
                rows, next_index = rows.slice(0, self._left), next_index[: self._left]
                self._left -= len(rows)
            yield from (
                self._encoder.encode(rows, next_index)
                if len(rows)
                else (self._encoder.reach(self.next, self._passed),)
            )
            del rows, next_index, batches, last
            self.held_bytes = 0
            yield b""  # Who takes the pieces looks whether there is room for more.

    def catch_up(self, passed: Nanos) -> Any:
        """Everything up to the end of a view was read. `passed`: what is known of the time of later events."""
        self._passed = max(self._passed, passed)
        return self._encoder.catch_up(self.next, self._passed)

    def beat(self) -> Any:
        return self._encoder.beat(self.next)

    def end(self) -> bytes:
        return self._encoder.end()

    def close(self) -> None:
        self._cursor.close()

    def _chosen(self, rows: Table) -> tuple[Table, Array]:
        offsets = rows.numbers("offset").values
        next_index = next_index_of(offsets)
        first = int(np.searchsorted(offsets, self._start.offset))
        if first < len(offsets) and offsets[first] == self._start.offset:
            first += self._start.part
            if first < len(offsets) and offsets[first] != self._start.offset:
                first = int(np.searchsorted(offsets, self._start.offset, side="right"))
        if first:
            rows, next_index = rows.slice(first), next_index[first:]
        mask = self._mask(rows)
        if mask is not None and not mask.all():
            rows, next_index = rows.filter(mask), next_index[mask]
        return rows, next_index

    def _mask(self, rows: Table) -> NDArray[np.bool_] | None:
        """The rows that pass every filter; None if there are no filters."""
        masks: list[NDArray[np.bool_]] = []
        if self._since:
            masks.append(rows.numbers("time").values >= self._since)
        if self._is_over:
            masks.append(rows.numbers("time").values < self._until)
        if self._states is not None:
            masks.append(self._states.take(rows.numbers("letter").values))
        if self._queues:
            masks.append(self._queues(rows.numbers("queue").values) == 1)
        if self._topics:
            masks.append(self._topics.mask(rows))
        if self._cause:
            headers = rows.objects("headers")
            masks.append(np.array([each is not None and self._cause in each for each in headers], dtype=np.bool_))
        if self._text:
            masks.append(_have(self._text, rows))
        return np.logical_and.reduce(masks) if masks else None


def _is_chosen(queue: str | None, wanted: frozenset[str], access: Access) -> bool:
    return (not wanted or queue in wanted) and access.reads(queue)


def _have(text: bytes, rows: Table) -> NDArray[np.bool_]:
    """Which rows have a body with this text. Bodies are cut out only if a batch contains it at all."""
    if not any(text in payload for _, payload in rows.columns.rows.batches):
        return np.zeros(len(rows), dtype=np.bool_)
    return np.array([body is not None and text in body for body in rows.objects("body")], dtype=np.bool_)


def _letters(states: str) -> NDArray[np.bool_]:
    wanted = np.zeros(256, dtype=np.bool_)
    wanted[[ord(letter) for letter in states]] = True
    return wanted


def _matches(topics: str | None, patterns: Iterable[str]) -> bool:
    """Whether one of a message's topics matches one of these patterns."""
    return any(
        topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern
        for topic in (topics or "").split("\n")
        if topic
        for pattern in patterns
    )
