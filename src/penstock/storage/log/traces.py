"""The trace of a message: every record about it, however old, without reading the whole log.

For any thread. A trace goes from the end of the log back to the record with which the message entered its queue, and
reads only the blocks that may hold records of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import EventsRemovedError
from penstock.limits import NEVER_NS, TRACE_BYTES_MAX, TRACE_PLACES_MAX, TRACE_RECORDS_MAX
from penstock.model.events import Event
from penstock.model.kinds import ABOUT_MESSAGES, BEGINS, MOVES, WITH_CONTENT, Kind
from penstock.model.values import Nanos, Place
from penstock.storage.letters.columns import NUMBERS, PARTS
from penstock.storage.letters.table import table_of
from penstock.storage.log.batch import RECORD_DTYPE, Batches, Header, records_of
from penstock.storage.log.decode import events_at
from penstock.storage.log.names import names_defined
from penstock.storage.log.trace_index import IS_JOIN, NAMES, Traces
from penstock.storage.log.view import Cursor, View

_Array = NDArray[Any]
Columns = dict[str, list[Any]]  # The values of each column, None where there is none.

_ROW_BYTES = 500  # What the numbers of a row take in memory, about.


def find_name(traces: Traces, view: View, number: int) -> str | None:
    """The text of a name, of the newest event that defines or forgets it, without reading the whole log."""
    for index in reversed(range(len(view.parts))):
        part, is_finished = view.parts[index], index < len(view.parts) - 1
        try:
            before = end = view.part_end(index)
            while block := traces.of(part).last_block([(NAMES, number)], before, end, finished=is_finished):
                before = block[0]
                for batch in reversed(_batches_of(view, *block)[0]):
                    if (text := names_defined(*batch).get(number)) is not None:
                        return text
        except EventsRemovedError:
            continue  # Removed just now.
    return None


def _batches_of(view: View, start: int, end: int) -> tuple[Batches, bool]:
    """The whole batches of a block, and whether damaged ones were skipped."""
    found: Batches = []
    cursor, is_damaged = Cursor(start), False
    try:
        while cursor.position < end:
            sound, damaged = cursor.read_sound(view, end)
            found += sound
            is_damaged = is_damaged or damaged
    finally:
        cursor.close()
    return found, is_damaged


class Trace(NamedTuple):
    """What was found, in order. Not `whole`: some records are past retention or damaged, or there were too many."""

    events: list[tuple[int, Event]]  # With their offsets.
    rows: list[Columns]  # The same events: a row for every letter.
    content: Event | None  # The `Logged` of another message that has the content of this one.
    places: list[Place]
    whole: bool


class Tracer:
    """Follows one message back through the log, a block at a step. For one thread at a time."""

    def __init__(self, traces: Traces, view: View, place: Place, created: Nanos = 0) -> None:
        self._traces = traces
        self._view = view
        self._created = created  # No record of the message is older. 0: not known yet.
        self._places: dict[Place, None] = {place: None}  # All places that the message has been in.
        self._wanted: set[Place] = {place}  # Those whose first record is not found yet.
        self._later: set[Place] = set()  # Those with later records: a second pass looks for them.
        self._sources: set[Place] = set()  # Of other messages, whose first record has the content of this one.
        self._events: dict[int, Event] = {}
        self._rows: dict[int, Columns] = {}
        self._content: Event | None = None
        self._room = TRACE_BYTES_MAX
        self._whole = True
        self._grown = False  # There is one more place to look for.
        self._go_to_the_end()

    def step(self) -> bool:
        """Read one block, or skip one part. False if there is nothing more to read."""
        if (self._wanted or self._sources) and self._part >= 0 and not self._is_too_old(self._part):
            try:
                if self._read_block():
                    return True
            except EventsRemovedError:
                pass  # Removed just now.
            self._before = self._view.parts[self._part].base_position
            self._part -= 1
            return True
        self._whole = self._whole and not self._wanted
        if self._later:
            self._wanted, self._later, self._sources = self._later, set(), set()
            self._go_to_the_end()
            return True
        return False

    def trace(self) -> Trace:
        offsets = sorted(self._events)
        rows = [self._rows[offset] for offset in sorted(self._rows)]
        events = [(offset, self._events[offset]) for offset in offsets]
        return Trace(events, rows, self._content, list(self._places), self._whole)

    def _go_to_the_end(self) -> None:
        self._part = len(self._view.parts) - 1
        self._before = self._view.end.position

    def _is_too_old(self, index: int) -> bool:
        following = self._view.parts[index + 1 : index + 2]
        return bool(following) and following[0].created < self._created and not self._sources

    def _read_block(self) -> bool:
        parts, end = self._view.parts, self._view.part_end(self._part)
        places, finished = self._wanted | self._sources, self._part < len(parts) - 1
        block = self._traces.of(parts[self._part]).last_block(places, self._before, end, finished=finished)
        if block is None:
            return False
        self._before, end = block
        batches, is_damaged = _batches_of(self._view, self._before, end)
        self._whole = self._whole and not is_damaged
        if batches:
            self._look_at(batches)
        return True

    def _look_at(self, batches: Batches) -> None:
        """Take the records of some batches that are about the message, the last one first."""
        tables = [payload[header.heap_bytes :] for header, payload in batches]
        records = np.frombuffer(b"".join(tables), dtype=RECORD_DTYPE)
        starts = np.cumsum([0, *[header.records for header, _ in batches]]).tolist()
        taken: dict[int, list[int]] = {}
        left = np.flatnonzero(self._concerned(records)).tolist()
        while left:
            at = left.pop()
            batch = bisect_right(starts, at) - 1
            index = at - starts[batch]
            if self._take(records[at], partial(_event_at, *batches[batch], index)):
                taken.setdefault(batch, []).append(index)
            if self._grown:  # Earlier records about the new place are wanted too.
                self._grown = False
                left = np.flatnonzero(self._concerned(records[:at])).tolist()
        for batch, indices in taken.items():
            self._keep(*batches[batch], indices)

    def _concerned(self, records: _Array) -> NDArray[np.bool_]:
        """Which records may be about the message. `_take` looks at them one by one."""
        places = self._wanted | self._sources
        queues = np.array(sorted({queue for queue, _ in places}), dtype=np.uint32)
        sequences = np.array(sorted({sequence for _, sequence in places}), dtype=np.uint64)
        here = np.isin(records["queue"], queues)
        mask: NDArray[np.bool_] = here & np.isin(records["sequence"], sequences)
        mask |= here & (records["kind"] == Kind.QUEUE_REMOVED)
        joins = IS_JOIN[records["kind"]]
        if joins.any():
            mask |= joins & np.isin(records["to_queue"], queues) & np.isin(records["to_sequence"], sequences)
        return mask

    def _take(self, record: Any, event: Callable[[], Event]) -> bool:
        """Whether a record is about the message. Notes what it means for the search."""
        kind = int(record["kind"])
        if kind == Kind.QUEUE_REMOVED:
            return int(record["queue"]) in {queue for queue, _ in self._wanted}
        if kind not in ABOUT_MESSAGES:
            return False
        here = (int(record["queue"]), int(record["sequence"]))
        there = (int(record["to_queue"]), int(record["to_sequence"]))
        if kind in WITH_CONTENT and here in self._sources:
            self._sources.discard(here)
            self._content = event()
        concerned = here in self._wanted
        if concerned and kind in MOVES:
            self._add(there, self._later)
        if concerned and kind in BEGINS:
            self._wanted.discard(here)
            if kind not in WITH_CONTENT and there not in self._places:
                self._sources.add(there)
                self._grown = True
        if there in self._wanted and kind in MOVES:
            self._wanted.discard(there)
            self._add(here, self._wanted)
            self._grown = concerned = True
        if there in self._wanted and kind in (Kind.QUEUED, Kind.CAME_FROM, Kind.COPIED_FROM):
            self._add(here, self._later)
            concerned = True
        if concerned:
            self._created = min(self._created or NEVER_NS, int(record["created"]))
        return concerned

    def _add(self, place: Place, to: set[Place]) -> None:
        if place not in self._places and len(self._places) < TRACE_PLACES_MAX:
            self._places[place] = None
            to.add(place)

    def _keep(self, header: Header, payload: bytes, taken: list[int]) -> None:
        if self._room <= 0 or len(self._events) >= TRACE_RECORDS_MAX:
            self._whole = False
            taken = [at for at in taken if records_of(header, payload)["kind"][at] in BEGINS]
        for at, event in events_at(header, payload, sorted(taken)):
            self._events[header.base_offset + at] = event
        rows = table_of([(header, payload)])
        offsets = rows.numbers("offset").values
        kept = rows.filter(np.array([offset in self._events for offset in offsets.tolist()], np.bool_))
        columns = {name: kept.objects(name) for name in (*NUMBERS, *PARTS)}
        self._rows[header.base_offset] = columns
        self._room -= len(kept) * _ROW_BYTES + sum(len(text) for name in PARTS for text in columns[name] if text)


def _event_at(header: Header, payload: bytes, at: int) -> Event:
    return next(events_at(header, payload, [at]))[1]
