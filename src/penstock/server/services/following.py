"""Messages that a reader of the Event Log follows because of their topics.

Only the events with which a message enters a queue (L, Q, U) hold its topics. So a reader remembers the places of the
messages it wants, and recognises their later events by them. A reader that begins in the middle of the log meets
messages that entered before: it goes back to where the oldest of these was created, and looks through the log from
there on without showing anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import EventsRemovedError
from penstock.limits import FOLLOWED_MAX, READ_BYTES, SEQUENCE_MAX
from penstock.model.kinds import Kind
from penstock.model.values import Nanos
from penstock.storage.arrow.columns import decode
from penstock.storage.log.batch import Batches
from penstock.storage.log.view import Cursor, View

_Array = NDArray[Any]
_Mask = NDArray[np.bool_]

_COLUMNS = ("letter", "kind", "queue", "sequence", "created", "topics", "to_queue", "to_sequence")
_SEQUENCE_BITS = SEQUENCE_MAX.bit_length()
_NOTHING = np.empty(0, dtype=np.int64)
_ENTERS = np.array([ord(letter) for letter in "LQU"], dtype=np.uint8)
_ENDS = np.array([ord(letter) for letter in "XEZDKIN"], dtype=np.uint8)


class Followed:
    """The places of messages with the wanted topics, as sorted numbers."""

    def __init__(self, has_topic: Callable[[_Array], _Mask], most: int = FOLLOWED_MAX) -> None:
        self._has_topic = has_topic  # By the numbers of sets of topics.
        self._most = most
        self._places = _NOTHING
        self._ended = np.empty(0, dtype=np.bool_)  # So it seems: a queue may keep them nevertheless.

    def learn(self, rows: pa.RecordBatch) -> None:
        """Remember the messages that enter a queue with a wanted topic, and where known ones are moved to."""
        places = _places(rows)
        self._add(places[self._has_topic(rows.column("topics").to_numpy())])
        origins, targets = _moves(rows, places)
        while len(new := np.setdiff1d(targets[self._are_known(origins)], self._places)):
            self._add(new)  # What was moved may be moved once more.
        self._note_ends(rows, places)

    def mask(self, rows: pa.RecordBatch) -> _Mask:
        """Which events are about messages that are followed; the end of a queue is about all that it held."""
        known = self._are_known(_places(rows))
        for row in np.flatnonzero(_is_null(rows.column("sequence"))).tolist():
            queue = rows.column("queue")[row].as_py()
            low, high = np.searchsorted(self._places, [queue << _SEQUENCE_BITS, (queue + 1) << _SEQUENCE_BITS])
            known[row] = not self._ended[low:high].all()
        return known

    def oldest_unknown(self, rows: pa.RecordBatch) -> Nanos | None:
        """When the oldest message was created that is met here and has entered its queue before."""
        places = _places(rows)
        entered = places[np.isin(_letters(rows), _ENTERS)]
        unknown = (places >= 0) & ~self._are_known(places) & ~np.isin(places, entered)
        if not unknown.any():
            return None
        return int(rows.column("created").cast(pa.int64()).fill_null(0).to_numpy()[unknown].min())

    def _are_known(self, places: _Array) -> _Mask:
        if not len(self._places):
            return np.zeros(len(places), dtype=np.bool_)
        at = np.searchsorted(self._places, places).clip(max=len(self._places) - 1)
        mask: _Mask = self._places[at] == places
        return mask

    def _add(self, places: _Array) -> None:
        new = np.setdiff1d(places, self._places)
        if not len(new):
            return
        joined = np.concatenate((self._places, new))
        order = np.argsort(joined, kind="stable")
        ended = np.concatenate((self._ended, np.zeros(len(new), dtype=np.bool_)))
        self._places, self._ended = joined[order], ended[order]
        if len(self._places) > self._most:
            self._forget()

    def _note_ends(self, rows: pa.RecordBatch, places: _Array) -> None:
        ended = places[np.isin(_letters(rows), _ENDS)]
        ended = ended[self._are_known(ended)]
        self._ended[np.searchsorted(self._places, ended)] = True

    def _forget(self) -> None:
        """Those that have ended; if that is not enough, those that came to their queues first."""
        alive = ~self._ended
        self._places, self._ended = self._places[alive], self._ended[alive]
        surplus = len(self._places) - self._most
        if surplus > 0:
            oldest = np.argsort(self._places & SEQUENCE_MAX, kind="stable")[:surplus]
            self._places, self._ended = np.delete(self._places, oldest), np.delete(self._ended, oldest)


class LookBack:
    """What a reader has seen of the log, and how it sees more of what came before.

    Each time it goes back at least as far again as it has looked already: so the log is read twice at most."""

    def __init__(self, followed: Followed, start: int) -> None:
        self._followed = followed
        self._from = start  # Everything from this offset on was looked at.
        self._cursor: Cursor | None = None
        self._until = 0  # A position.

    @property
    def under_way(self) -> bool:
        return self._cursor is not None

    def is_needed(self, view: View, rows: pa.RecordBatch, batches: Batches) -> bool:
        """Do these events, which are to be shown next, tell of messages that entered before? Then it begins."""
        first = view.earliest().offset
        oldest = self._followed.oldest_unknown(rows) if self._from > first else None
        offset = self._from if oldest is None else view.offset_at(oldest)
        if offset >= self._from:
            return False
        here = batches[0][0]
        self._from = max(first, min(offset, 2 * self._from - here.base_offset))
        self._cursor = Cursor(view.point_of(self._from).position)
        self._until = here.base_position
        return True

    def step(self, view: View) -> None:
        assert self._cursor is not None
        try:
            batches = self._cursor.read(view, READ_BYTES)
        except EventsRemovedError:
            batches = []  # Retention was faster: what is known is all that will be.
        if batches:
            self._followed.learn(decode(batches, _COLUMNS))
        if not batches or self._cursor.position >= self._until:
            self.close()

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None


def _letters(rows: pa.RecordBatch) -> _Array:
    column = rows.column("letter")
    letters: _Array = np.frombuffer(column.buffers()[2], dtype=np.uint8, count=len(column), offset=column.offset)
    return letters


def _is_null(column: pa.Array) -> _Mask:
    mask: _Mask = column.is_null().to_numpy(zero_copy_only=False)
    return mask


def _places(rows: pa.RecordBatch) -> _Array:
    """Queue and sequence of each row in one number; -1 where it is about no message."""
    sequences = rows.column("sequence").fill_null(-1).to_numpy()
    places: _Array = (rows.column("queue").to_numpy().astype(np.int64) << _SEQUENCE_BITS) | sequences
    return np.where(sequences < 0, -1, places)


def _moves(rows: pa.RecordBatch, places: _Array) -> tuple[_Array, _Array]:
    """From where to where messages were moved. A dead letter's E has where it goes, the Q of what an operator moved
    has where it was."""
    kinds = rows.column("kind").to_numpy()
    if not ((kinds == Kind.DEAD_LETTERED) | (kinds == Kind.MOVED)).any():
        return _NOTHING, _NOTHING
    queues = rows.column("to_queue").fill_null(-1).to_numpy().astype(np.int64)
    others = (queues << _SEQUENCE_BITS) | rows.column("to_sequence").fill_null(0).to_numpy()
    dead, moved = (queues >= 0) & (kinds == Kind.DEAD_LETTERED), (queues >= 0) & (kinds == Kind.MOVED)
    return np.concatenate((places[dead], others[moved])), np.concatenate((others[dead], places[moved]))
