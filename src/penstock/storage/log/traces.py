"""The trace of a message: every record that tells of it, however long ago, without reading the whole log.

For threads beside the one that writes. Of each segment is known, for every block of about a megabyte and every queue,
which sequences its records tell of, from the lowest to the highest; that is found out when a trace first leads
through the segment. A block that cannot hold a message's records is not read. The way goes from the end of the log
back to the record by which the message came to its place.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import EventsRemovedError
from penstock.limits import (
    NEVER_NS,
    SEQUENCE_MAX,
    TRACE_BYTES_MAX,
    TRACE_INDEX_BYTES_MAX,
    TRACE_PLACES_MAX,
    TRACE_RECORDS_MAX,
)
from penstock.model.events import Event
from penstock.model.kinds import ABOUT_MESSAGES, BEGINS, MOVES, Kind
from penstock.model.values import Nanos, Place, Position
from penstock.storage.arrow.columns import decode
from penstock.storage.log.batch import HEADER_BYTES, RECORD_BYTES, RECORD_DTYPE, Header, records_of
from penstock.storage.log.decode import events_at
from penstock.storage.log.parts import Part, PartFile, walk
from penstock.storage.log.view import Cursor, View

_Array = NDArray[Any]

BLOCK_BYTES = 1 << 20
_ENTRY = np.dtype([("block", "<u4"), ("queue", "<u4"), ("low", "<u8"), ("high", "<u8")])
_NO_ENTRIES = np.empty(0, dtype=_ENTRY)

# Records that join two places: a message goes from the one to the other, or is in both.
_JOINS = MOVES | {Kind.QUEUED}
_IS_JOIN, _IS_ABOUT_MESSAGE = np.zeros((2, 256), dtype=np.bool_)
_IS_JOIN[list(_JOINS)] = _IS_ABOUT_MESSAGE[list(ABOUT_MESSAGES)] = True


class Trace(NamedTuple):
    """What was found, in order. Not `whole`: some of it is past retention, or there was too much of it."""

    events: list[tuple[int, Event]]  # With their offsets.
    rows: list[pa.RecordBatch]  # The same as `columns` has it, a row for every letter.
    content: Event | None  # The `Logged` of another message that has the content of this one.
    places: list[Place]
    whole: bool


class Traces:
    """What is known of the segments, for all traces together."""

    def __init__(self, block_bytes: int = BLOCK_BYTES) -> None:
        self._block_bytes = block_bytes
        self._lock = Lock()
        self._parts: OrderedDict[int, _PartTraces] = OrderedDict()

    def of(self, part: Part) -> _PartTraces:
        with self._lock:
            known = self._parts.get(part.base_offset)
            if known is None or known.part != part:
                known = self._parts[part.base_offset] = _PartTraces(part, self._block_bytes)
                self._trim()
            self._parts.move_to_end(part.base_offset)
            return known

    def _trim(self) -> None:
        while sum([each.nbytes for each in self._parts.values()]) > TRACE_INDEX_BYTES_MAX:
            self._parts.popitem(last=False)


class _PartTraces:
    """Which blocks of a segment may hold records of a message."""

    def __init__(self, part: Part, block_bytes: int) -> None:
        self.part = part
        self._block_bytes = block_bytes
        self._lock = Lock()
        self._bounds = [part.base_position]  # Where each block begins, and the last one ends.
        self._entries = _NO_ENTRIES  # Of all blocks, by queue.

    @property
    def nbytes(self) -> int:
        return int(self._entries.nbytes) + 32 * len(self._bounds)

    def last_block(
        self, places: Iterable[Place], before: Position, end: Position, *, finished: bool
    ) -> tuple[Position, Position] | None:
        """From where to where to read: the last block before a position that may tell of one of these places. In the
        segment that is being written, what came since the last block was full is always read."""
        self._cover(end, finished=finished)
        entries, bounds = self._entries, self._bounds
        if bounds[-1] < min(before, end):
            return bounds[-1], end
        block = bisect_left(bounds, before) - 1  # The last one that begins before it.
        last = -1
        for queue, sequence in places:
            low, high = np.searchsorted(entries["queue"], [queue, queue + 1])
            of_queue = entries[low:high]
            inside = (of_queue["low"] <= sequence) & (sequence <= of_queue["high"]) & (of_queue["block"] <= block)
            last = max([last, *of_queue["block"][inside].tolist()])
        return (bounds[last], bounds[last + 1]) if last >= 0 else None

    def _cover(self, end: Position, *, finished: bool) -> None:
        """Go on to where the segment ends now, as far as it makes whole blocks."""
        with self._lock:
            if end - self._bounds[-1] < (1 if finished else self._block_bytes):
                return
            try:
                file = self.part.open()
            except FileNotFoundError:
                raise EventsRemovedError(self.part.base_offset) from None
            try:
                fresh = list(self._new_blocks(file, end, finished=finished))
            finally:
                file.close()
            entries = np.concatenate([self._entries, *fresh])
            self._entries = entries[np.argsort(entries["queue"], kind="stable")]

    def _new_blocks(self, file: PartFile, end: Position, *, finished: bool) -> Iterator[_Array]:
        records: list[bytes] = []
        for header in walk(file, self._bounds[-1], end, over_damage=True):
            at = header.base_position + HEADER_BYTES + header.heap_bytes
            records.append(file.read(at, header.records * RECORD_BYTES))
            after = header.base_position + header.total_bytes
            if after - self._bounds[-1] >= self._block_bytes or (finished and after == end):
                yield _ranges(np.frombuffer(b"".join(records), dtype=RECORD_DTYPE), len(self._bounds) - 1)
                self._bounds.append(after)
                records = []


def _ranges(records: _Array, block: int) -> _Array:
    """Of every queue, the lowest and the highest sequence that these records tell of."""
    about, joined = records[_IS_ABOUT_MESSAGE[records["kind"]]], records[_IS_JOIN[records["kind"]]]
    removed = records["queue"][records["kind"] == Kind.QUEUE_REMOVED]  # Of which every message is told.
    all_of_them = np.repeat(np.array((0, SEQUENCE_MAX), dtype=np.uint64), len(removed))
    queues = np.concatenate((about["queue"], joined["to_queue"], removed, removed))
    sequences = np.concatenate((about["sequence"], joined["to_sequence"], all_of_them))
    order = np.lexsort((sequences, queues))
    queues, sequences = queues[order], sequences[order]
    first = np.flatnonzero(np.append(True, queues[1:] != queues[:-1])) if len(queues) else np.empty(0, dtype=np.int64)
    entries = np.zeros(len(first), dtype=_ENTRY)
    entries["block"] = block
    entries["queue"] = queues[first]
    entries["low"] = sequences[first]
    entries["high"] = sequences[np.append(first[1:], len(queues)) - 1] if len(first) else 0
    return entries


class Tracer:
    """Follows one message back through the log, a block at a step. For one thread at a time."""

    def __init__(self, traces: Traces, view: View, place: Place, created: Nanos = 0) -> None:
        self._traces = traces
        self._view = view
        self._created = created  # Nothing tells of the message before this. 0: not known yet.
        self._places: dict[Place, None] = {place: None}  # All there are of the message.
        self._wanted: set[Place] = {place}  # Those whose beginning is not found yet.
        self._later: set[Place] = set()  # Those of which more is told later on: they need a way of their own.
        self._sources: set[Place] = set()  # Of other messages, whose beginning has the content of this one.
        self._events: dict[int, Event] = {}
        self._rows: dict[int, pa.RecordBatch] = {}
        self._content: Event | None = None
        self._room = TRACE_BYTES_MAX
        self._whole = True
        self._grown = False  # There is one more place to look for.
        self._go_to_the_end()

    def step(self) -> bool:
        """Read one block, or pass over one segment. False if there is nothing more to read."""
        if (self._wanted or self._sources) and self._part >= 0 and not self._is_too_old(self._part):
            try:
                if self._read_block():
                    return True
            except EventsRemovedError:
                pass  # Just now, with all that it told.
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
        part = self._view.parts[self._part]
        end, finished = self._view.part_end(self._part), self._part < len(self._view.parts) - 1
        known = self._traces.of(part)
        block = known.last_block(self._wanted | self._sources, self._before, end, finished=finished)
        if block is None:
            return False
        self._before, end = block
        batches: list[tuple[Header, bytes]] = []
        cursor = Cursor(self._before)
        try:
            while cursor.position < end:
                sound, damaged = cursor.read_sound(self._view, end)
                batches += sound
                self._whole = self._whole and not damaged
        finally:
            cursor.close()
        if batches:
            self._look_at(batches)
        return True

    def _look_at(self, batches: list[tuple[Header, bytes]]) -> None:
        """Take what some batches tell of the message, the last record first."""
        tables = [records_of(*batch) for batch in batches]
        records = np.concatenate(tables)
        starts = np.cumsum([0, *[len(table) for table in tables]]).tolist()
        taken: dict[int, list[int]] = {}
        left = np.flatnonzero(self._concerned(records)).tolist()
        while left:
            at = left.pop()
            batch = bisect_right(starts, at) - 1
            index = at - starts[batch]
            if self._take(records[at], partial(_event_at, *batches[batch], index)):
                taken.setdefault(batch, []).append(index)
            if self._grown:  # What is told of the new place before this has to be looked for as well.
                self._grown = False
                left = np.flatnonzero(self._concerned(records[:at])).tolist()
        for batch, indices in taken.items():
            self._keep(*batches[batch], indices)

    def _concerned(self, records: _Array) -> NDArray[np.bool_]:
        """Which records may tell of it: their places are looked at one by one later."""
        places = self._wanted | self._sources
        queues = np.array(sorted({queue for queue, _ in places}), dtype=np.uint32)
        sequences = np.array(sorted({sequence for _, sequence in places}), dtype=np.uint64)
        here = np.isin(records["queue"], queues)
        mask: NDArray[np.bool_] = here & np.isin(records["sequence"], sequences)
        mask |= here & (records["kind"] == Kind.QUEUE_REMOVED)
        joins = _IS_JOIN[records["kind"]]
        if joins.any():
            mask |= joins & np.isin(records["to_queue"], queues) & np.isin(records["to_sequence"], sequences)
        return mask

    def _take(self, record: Any, event: Callable[[], Event]) -> bool:
        """Whether a record tells of the message; and what follows from it for the search."""
        kind = int(record["kind"])
        if kind == Kind.QUEUE_REMOVED:
            return int(record["queue"]) in {queue for queue, _ in self._wanted}
        if kind not in ABOUT_MESSAGES:
            return False
        here = (int(record["queue"]), int(record["sequence"]))
        there = (int(record["to_queue"]), int(record["to_sequence"]))
        if kind == Kind.LOGGED and here in self._sources:
            self._sources.discard(here)
            self._content = event()
        concerned = here in self._wanted
        if concerned and kind in MOVES:
            self._add(there, self._later)
        if concerned and kind in BEGINS:
            self._wanted.discard(here)
            if kind != Kind.LOGGED and there not in self._places:
                self._sources.add(there)
                self._grown = True
        if there in self._wanted and kind in MOVES:
            self._wanted.discard(there)
            self._add(here, self._wanted)
            self._grown = concerned = True
        if there in self._wanted and kind == Kind.QUEUED:
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
        rows = decode([(header, payload)])
        offsets = rows.column("offset").to_numpy()
        kept = rows.filter(pa.array([offset in self._events for offset in offsets.tolist()], pa.bool_()))
        self._rows[header.base_offset] = kept
        self._room -= kept.nbytes


def _event_at(header: Header, payload: bytes, at: int) -> Event:
    return next(events_at(header, payload, [at]))[1]
