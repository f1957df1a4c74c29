"""What the workers of one machine know of each other without asking: when each of them was last alive.

The supervisor makes it before it starts them, in memory that they share. Each notes the time in a place of its own,
from its event loop, so a loop that stands still is noticed whatever the reason. Nobody needs another process to look.
"""

from __future__ import annotations

import mmap
from math import inf
from time import monotonic

_PLACE_BYTES = 8
_UNHEARD = 0.0  # It has not begun to serve, or has begun to stop: it may be silent for as long as that takes.
_ENDED = -1.0


class Board:
    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._beats = memoryview(mmap.mmap(-1, _PLACE_BYTES * workers)).cast("d")

    def beat(self, worker: int) -> None:
        self._beats[worker] = monotonic()

    def leave(self, worker: int) -> None:
        """It stops, and is not heard any more."""
        self._beats[worker] = _UNHEARD

    def end(self, worker: int) -> None:
        """Its process has ended."""
        self._beats[worker] = _ENDED

    def last_beat(self, worker: int) -> float | None:
        """None: it need not be heard."""
        beat = self._beats[worker]
        return beat if beat > _UNHEARD else None

    def silence(self, worker: int) -> float:
        """For how many seconds it has not been heard, though it should; infinite if it has ended."""
        beat = self._beats[worker]
        if beat > _UNHEARD:
            return max(0.0, monotonic() - beat)
        return inf if beat == _ENDED else 0.0
