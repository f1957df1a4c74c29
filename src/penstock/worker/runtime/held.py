"""A job that a worker holds, from the fetch to the answer to its confirmation."""

from __future__ import annotations

import asyncio
from enum import Enum

from penstock.client.asynchronous import AsyncMessage
from penstock.worker.context import Job


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

    __slots__ = ("extending", "job", "lease", "lost", "message", "runner", "state", "until")

    def __init__(self, message: AsyncMessage, lease: float, until: float) -> None:
        self.message = message
        self.lease = lease  # Seconds, each time that it is extended.
        self.until = until  # When it ends, as `time.monotonic` counts.
        self.extending = False
        self.lost = False
        self.state = State.WAITING
        self.job: Job | None = None
        self.runner: asyncio.Task[None] | None = None

    def become(self, state: State) -> None:
        assert state in _NEXT[self.state], f"{self.message.id}: {self.state} cannot become {state}"
        self.state = state

    def stop(self, reason: Exception) -> None:
        """End the function of a running job. Its runner sees the reason."""
        job, runner = self.job, self.runner
        if self.state is State.RUNNING and job and runner and job.stopped is None:
            job.stopped = reason
            runner.cancel()
