"""A sweep over everything that uses names, a slice at a time, to find names that are no longer used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.engine.queue import Queue
from penstock.engine.state import EngineState
from penstock.limits import ROWS_SWEPT_AT_ONCE

_COLUMNS = ("content_type", "sender", "object", "topics", "consumer")


class NameSweep:
    """One pass over everything that uses names. The engine continues meanwhile: `Names` keeps the names that are
    looked up, or that belong to a message that moves from one queue to another."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._slices = self._look()
        state.names.begin_sweep()

    def step(self) -> bool:
        """Examine one slice. Returns false at the end, when there may be names to forget."""
        if next(self._slices, False):
            return True
        self._state.names.have_been_swept()
        return False

    def _look(self) -> Iterator[bool]:
        for number in list(self._state.queues):
            if queue := self._state.queues.get(number):
                self._state.names.keep(queue.groups.names())
                yield True
                yield from self._look_at(queue)

    def _look_at(self, queue: Queue) -> Iterator[bool]:
        following = 0
        while self._state.queues.get(queue.number) is queue:
            sequences, rows = queue.rows.piece_from(following, ROWS_SWEPT_AT_ONCE)
            if not len(sequences):
                return
            self._state.names.keep(used_in(rows))
            following = int(sequences[-1]) + 1
            yield True


def used_in(rows: NDArray[Any]) -> set[int]:
    """The numbers of all names in rows."""
    return set(np.concatenate([rows[name] for name in _COLUMNS]).tolist())
