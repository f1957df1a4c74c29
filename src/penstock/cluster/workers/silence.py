"""What the supervisor does about a worker that hangs: it is asked what it is doing, and then killed.

Only time counts in which the supervisor was awake itself, so a machine that was suspended loses nobody. If several
are silent, the reason is hardly in each of them: one a minute is killed.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from penstock.cluster.workers.board import Board
from penstock.limits import SILENCE_KILL_SECONDS, SILENCE_LOOK_SECONDS, STACK_PAUSE_SECONDS, STACK_SECONDS_MAX

logger = logging.getLogger(__name__)

STACK_SIGNAL = signal.SIGUSR1
_STOPPED = frozenset("tT")


class Silences:
    """How long each worker was silent, while somebody listened."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._last: dict[int, float | None] = {}  # The last beat that was seen of each.
        self._seconds: dict[int, float] = {}
        self._looked_at = inf

    def look(self, workers: Iterable[int], now: float) -> dict[int, float]:
        """The seconds of those that should be heard, and are not."""
        passed = min(max(0.0, now - self._looked_at), 2 * SILENCE_LOOK_SECONDS)
        self._looked_at = now
        seconds: dict[int, float] = {}
        for worker in workers:
            beat = self._board.last_beat(worker)
            if beat is not None and beat == self._last.get(worker):
                seconds[worker] = self._seconds.get(worker, 0.0) + passed
            self._last[worker] = beat
        self._seconds = seconds
        return seconds


class Inquest:
    """About one silent worker, from the question to its end."""

    def __init__(self, process: int) -> None:
        self.process = process
        self.until = inf  # Then it is killed, or is known to be spared. Infinite: it was not asked yet.
        self.said = b""

    @property
    def stack(self) -> str:
        return self.said.decode("utf-8", "replace")


class Guard:
    def __init__(self, board: Board, seconds: float) -> None:
        """`seconds`: how long a worker may be silent."""
        self._silences = Silences(board)
        self._limit = seconds
        self._inquests: dict[int, Inquest] = {}
        self._killed_at = -inf

    def look(self, processes: Mapping[int, int], now: float) -> None:
        """`processes`: of all workers that run, by their numbers."""
        silences = self._silences.look(processes, now)
        hung = {worker: silence for worker, silence in silences.items() if silence >= self._limit}
        for worker in self._inquests.keys() - hung.keys():
            inquest = self._inquests.pop(worker)
            logger.warning("worker_heard_again", extra={"worker": worker, "stack": inquest.stack})
        for worker, silence in hung.items():
            if worker not in self._inquests:
                self._open(worker, processes[worker], silence, now)
            self._go_on(worker, self._inquests[worker], now)

    def hear(self, worker: int, stack: bytes, now: float) -> None:
        """What the worker says it is doing."""
        if inquest := self._inquests.get(worker):
            inquest.said += stack
            inquest.until = min(inquest.until, now + STACK_PAUSE_SECONDS)

    def forget(self, worker: int) -> None:
        """It has ended."""
        self._inquests.pop(worker, None)

    def _open(self, worker: int, process: int, silence: float, now: float) -> None:
        self._inquests[worker] = Inquest(process)
        spared = max(0.0, self._killed_at + SILENCE_KILL_SECONDS - now)
        facts: dict[str, Any] = {
            "worker": worker,
            "pid": process,
            "seconds": round(silence, 1),
            "spared_seconds": round(spared),
        }
        logger.error("worker_silent", extra=facts | state_of(process))

    def _go_on(self, worker: int, inquest: Inquest, now: float) -> None:
        if inquest.until == inf and now >= self._killed_at + SILENCE_KILL_SECONDS:
            self._killed_at = now  # From the question on: another one is not asked meanwhile.
            os.kill(inquest.process, STACK_SIGNAL)
            can_answer = state_of(inquest.process)["state"] not in _STOPPED
            inquest.until = now + (STACK_SECONDS_MAX if can_answer else 0.0)
        if now >= inquest.until:
            event, facts = "worker_without_stack", state_of(inquest.process)
            if inquest.said:
                event, facts = "worker_stack", {"stack": inquest.stack}
            logger.error(event, extra={"worker": worker, **facts})
            os.kill(inquest.process, signal.SIGKILL)
            self._inquests[worker] = Inquest(inquest.process)  # It is dead as soon as the system comes to it.


def state_of(process: int) -> dict[str, str]:
    """What the system says about a process: its state (R runs, S sleeps, D waits for a device, T is stopped), and
    where in the kernel it waits. Empty where there is no /proc."""
    folder = Path(f"/proc/{process}")
    try:
        state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        state = ""
    try:
        where = (folder / "wchan").read_text()
    except OSError:
        where = ""
    return {"state": state, "wchan": where}
