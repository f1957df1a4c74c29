"""A job that a worker holds, from the fetch to the answer to its confirmation."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum

from penstock.client.asynchronous import AsyncMessage
from penstock.worker.context import Job
from penstock.worker.errors import LeaseLost

logger = logging.getLogger("penstock.worker")


class State(Enum):
    WAITING = "waiting"  # Fetched, not begun.
    RUNNING = "running"
    SETTLING = "settling"  # The outcome is known, the broker has not answered yet.
    ENDED = "ended"  # Settled, given back or lost.


_NEXT = {
    State.WAITING: {State.RUNNING, State.SETTLING, State.ENDED},
    State.RUNNING: {State.SETTLING, State.ENDED},
    State.SETTLING: {State.ENDED},
    State.ENDED: set[State](),
}


class Held:
    """One delivery of one message."""

    __slots__ = ("begun", "extending", "job", "lease", "lost", "message", "runner", "state", "timer", "until")

    def __init__(self, message: AsyncMessage, lease: float, until: float) -> None:
        self.message = message
        self.lease = lease  # Seconds, each time that it is extended.
        self.until = until  # When it ends, as `time.monotonic` counts.
        self.extending = False
        self.lost = False
        self.begun = False
        self.timer: asyncio.TimerHandle | None = None  # Until the broker is told that it has begun.
        self.state = State.WAITING
        self.job: Job | None = None
        self.runner: asyncio.Task[None] | None = None

    def become(self, state: State) -> None:
        assert state in _NEXT[self.state], f"{self.message.id}: {self.state} cannot become {state}"
        self.state = state
        if self.timer is not None and self.is_settling:
            self.timer.cancel()

    @property
    def is_settling(self) -> bool:
        return self.state in (State.SETTLING, State.ENDED)

    def lose(self, why: str) -> LeaseLost:
        """It is not ours any more. What to stop its function with; any thread may call this."""
        self.lost = True
        logger.warning("job lost", extra={"job": self.message.id, "reason": why})
        return LeaseLost(f"job {self.message.id} is not ours any more: {why}")

    def stop(self, reason: Exception) -> None:
        """End the function of a running job. Its runner sees the reason."""
        job, runner = self.job, self.runner
        if self.state is State.RUNNING and job and runner and job.stopped is None:
            job.stopped = reason
            runner.cancel()
