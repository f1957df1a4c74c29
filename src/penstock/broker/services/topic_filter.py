"""Chooses the events of messages with the wanted topics, for a reader of the Event Log.

Only the events with which a message enters a queue (L, Q, U) contain its topics. So the filter remembers the places
of wanted messages, and recognises their later events by place. A reader that begins in the middle of the log meets
messages that entered earlier: the filter then goes back to where the oldest of these was created, and learns from the
log from there on, without output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import EventsRemovedError
from penstock.limits import FOLLOWED_MAX, READ_BYTES, SEQUENCE_MAX
from penstock.model.kinds import kinds_where
from penstock.model.values import Nanos
from penstock.storage.letters.table import Table, table_of
from penstock.storage.log.batch import Header
from penstock.storage.log.view import Cursor, View

_Array = NDArray[Any]
_Mask = NDArray[np.bool_]

_SEQUENCE_BITS = SEQUENCE_MAX.bit_length()
_NOTHING = np.empty(0, dtype=np.int64)
_ENTERS = np.array([ord(letter) for letter in "LQU"], dtype=np.uint8)
_ENDS = np.array([ord(letter) for letter in "XEZDKIN"], dtype=np.uint8)


class TopicFilter:
    """The places of messages with wanted topics, as sorted numbers."""

    def __init__(self, has_topic: Callable[[_Array], _Mask], start: int, most: int = FOLLOWED_MAX) -> None:
        self._has_topic = has_topic  # For the numbers of sets of topics.
        self._most = most
        self._places = _NOTHING
        self._ended = np.empty(0, dtype=np.bool_)  # Whether they seem to have ended; a queue may still keep them.
        self._known_from = start  # The filter has learned from everything from this offset on.

    def learn(self, rows: Table) -> None:
        """Remember the messages that enter a queue with a wanted topic, and where known ones are moved to."""
        places = _places(rows)
        self._add(places[self._has_topic(rows.numbers("topics").values)])
        origins, targets = _moves(rows, places)
        while len(new := np.setdiff1d(targets[self._are_known(origins)], self._places)):
            self._add(new)  # A message that was moved may be moved once more.
        self._note_ends(rows, places)

    def mask(self, rows: Table) -> _Mask:
        """For each event, whether it is about a wanted message. The removal of a queue is about all messages in
        it."""
        known = self._are_known(_places(rows))
        queues, messages = rows.numbers("queue").values, rows.numbers("sequence").valid
        for row in np.flatnonzero(~messages).tolist() if messages is not None else ():
            queue = int(queues[row])
            low, high = np.searchsorted(self._places, [queue << _SEQUENCE_BITS, (queue + 1) << _SEQUENCE_BITS])
            known[row] = not self._ended[low:high].all()
        return known

    def look_back(self, view: View, rows: Table, first: Header) -> Iterator[None]:
        """Learn from the log before these rows if they are about messages that entered earlier. `first`: the first
        batch of the rows. Yields after each piece of the log."""
        while (start := self._earlier(view, rows, first)) is not None:
            cursor = Cursor(view.point_of(start).position)
            try:
                while cursor.position < first.base_position and (batches := cursor.read(view, READ_BYTES)):
                    self.learn(table_of(batches))
                    yield
            except EventsRemovedError:
                pass  # Retention has just removed it, so there is no more to learn.
            finally:
                cursor.close()

    def _earlier(self, view: View, rows: Table, first: Header) -> int | None:
        """The offset from which to learn more, if these rows need it. Each time it goes back at least twice as far,
        so that the log is read twice at most."""
        earliest = view.earliest().offset
        oldest = self._oldest_unknown(rows) if self._known_from > earliest else None
        offset = self._known_from if oldest is None else view.offset_at(oldest)
        if offset >= self._known_from:
            return None
        self._known_from = max(earliest, min(offset, 2 * self._known_from - first.base_offset))
        return self._known_from

    def _oldest_unknown(self, rows: Table) -> Nanos | None:
        """When the oldest message in these rows that entered its queue earlier was created."""
        places = _places(rows)
        entered = places[np.isin(rows.numbers("letter").values, _ENTERS)]
        unknown = (places >= 0) & ~self._are_known(places) & ~np.isin(places, entered)
        if not unknown.any():
            return None
        return int(rows.filled("created", 0)[unknown].min())

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

    def _note_ends(self, rows: Table, places: _Array) -> None:
        ended = places[np.isin(rows.numbers("letter").values, _ENDS)]
        ended = ended[self._are_known(ended)]
        self._ended[np.searchsorted(self._places, ended)] = True

    def _forget(self) -> None:
        """Forget the messages that have ended; if that is not enough, those that entered their queues first."""
        alive = ~self._ended
        self._places, self._ended = self._places[alive], self._ended[alive]
        surplus = len(self._places) - self._most
        if surplus > 0:
            oldest = np.argsort(self._places & SEQUENCE_MAX, kind="stable")[:surplus]
            self._places, self._ended = np.delete(self._places, oldest), np.delete(self._ended, oldest)


def _places(rows: Table) -> _Array:
    """Queue and sequence of each row as one number; -1 if the row is not about a message."""
    sequences = rows.filled("sequence", -1)
    places: _Array = (rows.filled("queue", 0) << _SEQUENCE_BITS) | sequences
    return np.where(sequences < 0, -1, places)


_MOVES_ON_FAILURE = [*kinds_where(lambda row: row.moves and "E" in row.letters)]
_MOVES_BY_HAND = [*kinds_where(lambda row: row.moves and "E" not in row.letters)]


def _moves(rows: Table, places: _Array) -> tuple[_Array, _Array]:
    """From where and to where messages were moved. The E of a dead letter has the place that it goes to, the Q of a
    message that an operator moved has the place that it came from."""
    kinds = rows.numbers("kind").values
    dead, moved = np.isin(kinds, _MOVES_ON_FAILURE), np.isin(kinds, _MOVES_BY_HAND)
    if not (dead | moved).any():
        return _NOTHING, _NOTHING
    queues = rows.filled("to_queue", -1)
    others = (queues << _SEQUENCE_BITS) | rows.filled("to_sequence", 0)
    dead, moved = dead & (queues >= 0), moved & (queues >= 0)
    return np.concatenate((places[dead], others[moved])), np.concatenate((others[dead], places[moved]))
