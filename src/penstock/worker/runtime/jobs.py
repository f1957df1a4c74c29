"""The jobs that a worker holds: those that wait for a slot, those that run, and those being settled."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Mapping

from penstock.client.asynchronous import AsyncMessage
from penstock.client.results import Queue
from penstock.worker.outcome import AT_ONCE_SECONDS, Outcome, Stopping, raised
from penstock.worker.runtime.beginning import Beginning
from penstock.worker.runtime.execution import Execution
from penstock.worker.runtime.held import Held, State
from penstock.worker.runtime.settling import Settling

logger = logging.getLogger("penstock.worker")

_AHEAD_SECONDS = 0.25  # Jobs are fetched ahead for so long: enough to be busy, and little to give back.
_AHEAD_MAX = 1000
_HELD_MAX = 5000  # With those whose confirmations are under way.
_CALMING = 0.1  # How much one job counts in the mean duration.


class Jobs:
    """Runs so many at a time, in the order in which they came."""

    def __init__(
        self,
        concurrency: int,
        beginning: Beginning,
        execution: Execution,
        settling: Settling,
        queues: Mapping[str, Queue],
    ) -> None:
        self.concurrency = concurrency
        self._beginning = beginning
        self._execution = execution
        self._settling = settling
        self._queues = queues
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Held] = deque()
        self.running = 0
        self.held: set[Held] = set()
        self._changed = asyncio.Event()
        self._mean_seconds = 0.0  # Of the functions, lately. 0: none has ended yet.

    # ── Fetching ────────────────────────────────────────────────────────────────────────────────────────────

    def wanted(self) -> int:
        """How many more jobs to fetch: for the free slots, and for what will be begun in the next moment."""
        ahead = (
            min(_AHEAD_MAX, int(_AHEAD_SECONDS * self.concurrency / self._mean_seconds)) if self._mean_seconds else 0
        )
        room = self.concurrency - self.running + ahead - len(self._waiting)
        # Half empty, not one by one: a fetch of many costs little more than a fetch of one.
        if room <= 0 or len(self._waiting) > ahead // 2 or len(self.held) >= _HELD_MAX:
            return 0
        return min(room, _AHEAD_MAX)

    async def wait_for_change(self) -> None:
        """Until a job has ended."""
        self._changed.clear()
        await self._changed.wait()

    @property
    def idle(self) -> bool:
        return not self.held

    def take(self, messages: list[AsyncMessage]) -> None:
        """Jobs that were just fetched."""
        if not messages:
            return
        lease = self._queues[messages[0].queue].lease
        until = time.monotonic() + lease
        held = [Held(message, lease, until) for message in messages]
        self.held.update(held)
        self._waiting.extend(held)
        self._begin()

    # ── Running ─────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> None:
        while self._waiting and self.running < self.concurrency:
            held = self._waiting.popleft()
            if held.lost:
                self._forget(held)
                continue
            self.running += 1
            held.runner = self._loop.create_task(self._perform(held))

    async def _perform(self, held: Held) -> None:
        begun_at = self._loop.time()
        try:
            outcome = await self._run(held)
        except BaseException as error:  # Also that of a function that cancels every task of the event loop.
            logger.exception("error in the worker", extra={"job": held.message.id})
            if not held.is_settling:
                held.become(State.SETTLING)
            outcome = raised(error)
        finally:
            seconds = self._loop.time() - begun_at
            self.running -= 1
            self._mean_seconds += (seconds - self._mean_seconds) * (_CALMING if self._mean_seconds else 1)
            self._begin()
            self._changed.set()
        await self._settle(held, outcome, seconds)

    async def _run(self, held: Held) -> Outcome:
        if await self._beginning.begin(held):
            return await self._execution.run(held)
        held.become(State.SETTLING)
        return Outcome("lost")

    async def _settle(self, held: Held, outcome: Outcome, seconds: float = 0.0) -> None:
        try:
            await self._settling.settle(held, outcome, seconds)
        finally:
            self._forget(held)

    def _forget(self, held: Held) -> None:
        held.become(State.ENDED)
        self.held.discard(held)
        self._changed.set()

    # ── Stopping ────────────────────────────────────────────────────────────────────────────────────────────

    async def give_back(self) -> int:
        """Give back what has not begun. It has lost no attempt."""
        unbegun = list(self._waiting)
        self._waiting.clear()
        for held in unbegun:
            held.become(State.SETTLING)
        again = Outcome("retry", delay=AT_ONCE_SECONDS)
        await asyncio.gather(*[self._settle(held, again) for held in unbegun])
        return len(unbegun)

    async def finish(self, seconds: float) -> bool:
        """Wait until everything is settled. False: it took too long."""
        try:
            async with asyncio.timeout(seconds):
                while self.held:
                    await self.wait_for_change()
        except TimeoutError:
            return False
        return True

    async def abandon(self, seconds: float) -> None:
        """Interrupt what still runs, and give it back."""
        for held in list(self.held):
            held.stop(Stopping("the worker stops"))
        if not await self.finish(seconds):
            # Their functions do not end. The process will, before anyone else can get these jobs.
            left = [held for held in self.held if held.state is State.RUNNING]
            logger.warning("functions do not end", extra={"jobs": [held.message.id for held in left]})
            again = Outcome("retry", delay=1.0, error="the worker stops, and the function does not end")
            await asyncio.gather(*[self._settling.settle(held, again, 0.0) for held in left])
