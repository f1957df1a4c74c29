"""Search messages in queues without changing them: no receive is counted, and nothing is logged.

A search visits queues by number and the messages of each by sequence, so that its place is two numbers that stay
valid while messages come and go. It examines a bounded number of rows and returns where to resume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.engine.decide.draft import Draft
from penstock.engine.line import Line
from penstock.engine.queue import Queue
from penstock.engine.reasons import matches
from penstock.engine.rows import NAMELESS
from penstock.engine.state import EngineState
from penstock.engine.topics import has_topic, topics_of
from penstock.errors import Reason
from penstock.limits import NEVER_NS, ROWS_PER_CHUNK, SEARCH_ROWS_MAX, SEARCH_TOPICS_MAX
from penstock.model.answers import Candidates, Found, Held, Refused
from penstock.model.commands import Criteria, ListCandidates, ListHeld, ListScheduled, LookUp, Search
from penstock.model.lifecycle import DAMAGED, DELAYED, GONE, KEPT, LEASED, READY
from penstock.model.values import Nanos, Place

_Rows = NDArray[Any]
_Mask = NDArray[np.bool_]

_LOOKED_UP = 1024  # Rows found through an index that are examined together.
_LOOKED_UP_COST = 4  # The cost of each, in rows that are next to each other.
_QUEUE_COST = 16  # The cost of visiting a queue, in rows.
_NO_MOMENTS = np.empty((0, 3), dtype=np.int64)
_READ_BY = ("position", "body_bytes", "key_bytes")
_DELAYED_ONLY = frozenset(("delayed",))
_LEASED_ONLY = frozenset(("leased", "F"))

STANDINGS: dict[str, Callable[[_Rows], _Mask]] = {
    "ready": lambda rows: rows["state"] == READY,
    "delayed": lambda rows: rows["state"] == DELAYED,
    "leased": lambda rows: rows["state"] == LEASED,
    "kept": lambda rows: rows["state"] == KEPT,
    "damaged": lambda rows: rows["state"] == DAMAGED,
    "Q": lambda rows: _waits(rows) & (rows["receives"] == 0),
    "R": lambda rows: _waits(rows) & (rows["receives"] != 0),
    "F": lambda rows: rows["state"] == LEASED,
    "B": lambda rows: rows["state"] == DAMAGED,
}


def search(draft: Draft, command: Search) -> Found | Refused:
    """The next messages that meet the criteria, in the order of their places."""
    criteria = command.criteria
    if criteria.queue and criteria.queue not in draft.state.numbers:
        return Refused(Reason.NO_QUEUE, criteria.queue)
    turn = Turn(draft.state, criteria, command.after, command.rows)
    found: list[Held] = []
    for queue, sequences, _rows in turn.pieces():
        for sequence in sequences[: command.limit - len(found)].tolist():
            found.append(held(draft.state, queue, sequence))
        if len(found) >= command.limit:
            return Found(found, (queue.number, found[-1].sequence))
    return Found(found, turn.resume)


def candidates(draft: Draft, command: ListCandidates) -> Candidates | Refused:
    """The next messages that may meet the criteria, by their rows; the caller reads their bytes and decides."""
    criteria = command.criteria
    if criteria.queue and criteria.queue not in draft.state.numbers:
        return Refused(Reason.NO_QUEUE, criteria.queue)
    turn = Turn(draft.state, criteria, command.after, command.rows // 2)  # Each row costs more here.
    columns: list[list[int]] = [[], [], [], [], []]
    for queue, sequences, rows in turn.pieces():
        columns[0] += [queue.number] * len(sequences)
        columns[1] += sequences.tolist()
        for column, name in zip(columns[2:], _READ_BY, strict=True):
            column += rows[name].tolist()
    queues, of_queues, positions, body_bytes, key_bytes = columns
    return Candidates(queues, of_queues, positions, body_bytes, key_bytes, turn.resume)


def list_held(draft: Draft, command: ListHeld) -> Found:
    there = [
        held(draft.state, queue, sequence)
        for number, sequence in command.places
        if (queue := draft.state.queues.get(number)) and queue.rows.is_there(sequence)
    ]
    return Found(there, None)


def look_up(draft: Draft, command: LookUp) -> Found | Refused:
    """The message with this place in its id; empty if it is gone."""
    found = draft.find(command.queue, command.sequence)
    if found is not None:
        return Found([held(draft.state, found[0], found[1])], None)
    queue = draft.state.queues.get(command.queue)
    was_here = command.sequence <= queue.last_sequence if queue else _was_here(draft.state, command.queue)
    return Found([], None) if was_here else Refused(Reason.NO_MESSAGE)


def _was_here(state: EngineState, number: int) -> bool:
    """Whether the log may have a queue with this number. It may have copies of messages of all other shards."""
    return number <= state.last_queue or state.is_number_elsewhere(number)


def scheduled(draft: Draft, command: ListScheduled) -> Found | Refused:
    """The messages that become ready next, among the delayed messages that one turn examines."""
    if command.queue and command.queue not in draft.state.numbers:
        return Refused(Reason.NO_QUEUE, command.queue)
    criteria = Criteria(queue=command.queue, states=_DELAYED_ONLY, access=command.access)
    turn = Turn(draft.state, criteria, command.place, command.rows // 2)
    moments = [_NO_MOMENTS]
    for queue, sequences, rows in turn.pieces():
        free = (rows["consumer"] == 0) & (
            rows["marks"] & NAMELESS == 0
        )  # What a consumer still has is not scheduled.
        found = np.empty((len(rows), 3), dtype=np.int64)
        found[:, 0], found[:, 1], found[:, 2] = rows["visible_at"], queue.number, sequences
        found = found[free & (found[:, 0] <= command.before) & _are_after(found, command.after)]
        moments.append(found)
    chosen = _soonest(np.concatenate(moments), command.limit)
    messages = [held(draft.state, draft.state.queues[number], sequence) for _, number, sequence in chosen]
    return Found(messages, turn.resume)


def _are_after(moments: NDArray[np.int64], after: tuple[Nanos, int, int]) -> _Mask:
    """For each moment (time, queue, sequence), whether it comes after this one."""
    times, queues, sequences = moments.T
    same_time = (queues > after[1]) | ((queues == after[1]) & (sequences > after[2]))
    mask: _Mask = (times > after[0]) | ((times == after[0]) & same_time)
    return mask


def _soonest(moments: NDArray[np.int64], count: int) -> list[list[int]]:
    if len(moments) > 4 * count:  # Sorting is expensive, so first drop what is surely too late.
        moments = moments[moments[:, 0] <= np.partition(moments[:, 0], count)[count]]
    chosen: list[list[int]] = moments[np.lexsort(moments.T[::-1])][:count].tolist()
    return chosen


class Turn:
    """The rows that one turn of the event loop examines. `resume`: the place after which the next turn continues."""

    def __init__(self, state: EngineState, criteria: Criteria, after: Place, room: int = SEARCH_ROWS_MAX) -> None:
        self.resume: Place | None = None
        self._room = room
        self._state = state
        self._criteria = criteria
        self._after = after
        self._object = state.names.known(criteria.object)
        topic = criteria.topic
        self._topics = state.topics.matching(topic, SEARCH_TOPICS_MAX) if topic else None
        self._by_topic: dict[int, bool] = {}
        self._origins = state.numbers_of(criteria.origin) if criteria.origin else frozenset[int]()
        self._chosen = None if criteria.ids is None else _by_queue(state, criteria.ids)

    def pieces(self) -> Iterator[tuple[Queue, NDArray[np.int64], _Rows]]:
        """Messages that meet the criteria, some at a time: their queue, their sequences and their rows."""
        if (self._criteria.object and not self._object) or (self._criteria.origin and not self._origins):
            return
        if self._criteria.reason and not self._state.reasons:
            return
        room = self._room
        for queue in self._queues():
            room -= _QUEUE_COST
            after = self._after[1] if queue.number == self._after[0] else 0
            for sequences, rows, cost in self._looked_at(queue, after):
                mask = self._mask(rows)
                if self._origins:
                    mask &= self._come_from(queue, sequences)
                if self._criteria.reason:
                    mask &= self._failed_because(queue, sequences)
                if mask.all():
                    yield queue, sequences, rows
                elif mask.any():
                    yield queue, sequences[mask], rows[mask]
                room -= cost
                if room <= 0:
                    self._stop_after(queue, int(sequences[-1]))
                    return
            if room <= 0:
                self._stop_after(queue, queue.last_sequence)
                return

    def _stop_after(self, queue: Queue, sequence: int) -> None:
        """Continue after this place in the next turn, unless nothing can follow it."""
        last = queue.number if self._criteria.queue else next(reversed(self._state.queues))
        if queue.number != last or sequence < queue.last_sequence:
            self.resume = queue.number, sequence

    def _queues(self) -> Iterator[Queue]:
        state, name = self._state, self._criteria.queue
        if name:
            yield state.queues[state.numbers[name]]
        else:
            later = [queue for number, queue in state.queues.items() if number >= self._after[0]]
            access = self._criteria.access
            yield from later if access.sees_all else [queue for queue in later if access.reads(queue.name)]

    def _looked_at(self, queue: Queue, after: int) -> Iterator[tuple[NDArray[np.int64], _Rows, int]]:
        """Messages after a sequence, some at a time, whether they meet the criteria or not; and the cost of examining
        them, in rows that are next to each other."""
        if not queue.rows.count or (self._criteria.topic and queue.topics is None):
            return
        line = self._line(queue)
        if self._chosen is not None:
            chosen = sorted(sequence for sequence in self._chosen.get(queue.number, ()) if sequence > after)
            for at in range(0, len(chosen), _LOOKED_UP):
                some = np.array(chosen[at : at + _LOOKED_UP], dtype=np.int64)
                yield some, queue.rows.at(some.tolist()), _LOOKED_UP_COST * len(some)
        elif self._topics is not None and queue.topics is not None:
            numbers = [number for number in self._topics if number in queue.topics]
            most = min(_LOOKED_UP, self._room // _LOOKED_UP_COST)
            while numbers and len(sequences := queue.topics.following(numbers, after, most)):
                after = int(sequences[-1])
                yield sequences, queue.rows.at(sequences.tolist()), _LOOKED_UP_COST * len(sequences)
        elif line is not None and line.entries <= _LOOKED_UP:
            sequences = line.sequences()
            sequences = sequences[sequences > after]
            if len(sequences):
                yield sequences, queue.rows.at(sequences.tolist()), _LOOKED_UP_COST * len(sequences)
        else:
            while len((piece := queue.rows.piece_from(after + 1, self._room // ROWS_PER_CHUNK))[0]):
                before, after = after, int(piece[0][-1])
                yield *piece, min(after - before, self._room)  # Rows in between may be gone, but are examined too.

    def _line(self, queue: Queue) -> Line | None:
        """The line that contains all messages that can meet the criteria, if there is one."""
        if self._criteria.states == _DELAYED_ONLY:
            return queue.delayed
        return queue.leases if self._criteria.states and self._criteria.states <= _LEASED_ONLY else None

    def _mask(self, rows: _Rows) -> _Mask:
        criteria = self._criteria
        mask: _Mask = rows["state"] != GONE
        if criteria.states:
            mask &= np.logical_or.reduce([STANDINGS[state](rows) for state in criteria.states])
        if criteria.object:
            mask &= rows["object"] == self._object
        if criteria.since:
            mask &= rows["created"] >= criteria.since
        if criteria.until != NEVER_NS:
            mask &= rows["created"] < criteria.until
        if criteria.ready_since:
            mask &= rows["visible_at"] >= criteria.ready_since
        if criteria.ready_until != NEVER_NS:
            mask &= rows["visible_at"] < criteria.ready_until
        if criteria.key is not None:
            mask &= rows["key_bytes"] == len(criteria.key)
        if criteria.topic and self._topics is None:
            mask &= self._have_topic(rows["topics"])
        return mask

    def _come_from(self, queue: Queue, sequences: NDArray[np.int64]) -> _Mask:
        number, origins = queue.number, self._state.origins
        places = [(number, sequence) for sequence in sequences.tolist()]
        return np.array([origins.get(place, place)[0] in self._origins for place in places], dtype=bool)

    def _failed_because(self, queue: Queue, sequences: NDArray[np.int64]) -> _Mask:
        reasons, number, wanted = self._state.reasons, queue.number, self._criteria.reason
        texts = [reasons.of((number, sequence)) for sequence in sequences.tolist()]
        return np.array([bool(text) and matches(wanted, text) for text in texts], dtype=bool)

    def _have_topic(self, numbers: NDArray[np.uint32]) -> _Mask:
        known, places = np.unique(numbers, return_inverse=True)
        return np.array([self._has_topic(number) for number in known.tolist()], dtype=np.bool_)[places]

    def _has_topic(self, number: int) -> bool:
        if number not in self._by_topic:
            topics = topics_of(self._state.names, number)
            self._by_topic[number] = has_topic(topics, self._criteria.topic)
        return self._by_topic[number]


def _by_queue(state: EngineState, ids: Iterable[Place]) -> dict[int, list[int]]:
    """Where the messages with these ids are now: their sequences, by queue."""
    found: dict[int, list[int]] = {}
    for queue, sequence in {state.moved.get(place, place) for place in ids}:
        home = state.queues.get(queue)
        if home and home.rows.is_there(sequence):
            found.setdefault(queue, []).append(sequence)
    return found


def _waits(rows: _Rows) -> _Mask:
    mask: _Mask = (rows["state"] == READY) | (rows["state"] == DELAYED)
    return mask


def held(state: EngineState, queue: Queue, sequence: int) -> Held:
    row = queue.rows.get(sequence)
    assert row is not None
    place, text = (queue.number, sequence), state.names.texts
    needed = queue.settings.confirmations
    published = state.origins.get(place, place)
    return Held(
        *place,
        published,
        row.state,
        row.receives,
        text[row.consumer],
        row.priority,
        row.position,
        *(row.body_bytes, row.key_bytes, row.headers_bytes),
        *(row.created, row.visible_at, row.expires_at),
        *(text[row.content_type], text[row.sender], text[row.object], text[row.topics]),
        origin=state.name_of(published[0]) if published[0] != queue.number else "",
        is_awaited=row.state == KEPT and needed > 1 and queue.groups.results(sequence) < needed,
        reason=state.reasons.of(place),
    )
