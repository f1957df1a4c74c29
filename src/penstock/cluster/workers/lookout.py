"""What a worker does so that one that hangs is missed only by the clients that it has: it shows that it is alive
itself, and accepts connections in place of others that are silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from penstock.cluster.workers.board import Board
from penstock.cluster.workers.doors import Door, Doors
from penstock.limits import BEAT_SECONDS, LATE_SECONDS

logger = logging.getLogger(__name__)

AcceptAt = Callable[[Door], Awaitable[list[asyncio.Server]]]


class Lookout:
    def __init__(self, worker: int, board: Board, doors: Doors) -> None:
        self.worker = worker
        self.silence = board.silence
        self.door = doors.all[worker]
        self.when_silent: list[Callable[[int, float], None]] = []  # Told again and again, with the seconds.
        self._board, self._doors = board, doors
        self._others = [each for each in range(board.workers) if each != worker]
        self._taken: dict[int, list[asyncio.Server]] = {}  # What accepts connections at the doors of others.

    async def run(self, accept_at: AcceptAt) -> None:
        """Until it is cancelled: then nothing is accepted any more."""
        try:
            while True:
                self._board.beat(self.worker)
                for other in self._others:
                    await self._look_after(other, accept_at)
                await asyncio.sleep(BEAT_SECONDS)
        finally:
            self._board.leave(self.worker)
            for other in list(self._taken):
                self._give_back(other)
            self._doors.close()

    async def _look_after(self, other: int, accept_at: AcceptAt) -> None:
        silence = self._board.silence(other)
        if silence <= LATE_SECONDS:
            self._give_back(other)
            return
        if other not in self._taken:
            with contextlib.suppress(OSError):  # No file descriptor is free now.
                self._taken[other] = await accept_at(self._doors.all[other])
                logger.debug("door_taken_over", extra={"of": other})
        for callback in self.when_silent:
            callback(other, silence)

    def _give_back(self, other: int) -> None:
        for each in self._taken.pop(other, ()):
            each.close()
