"""Virtual time: what is planned happens in order, and waiting costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random

from penstock.limits import SECOND_NS
from penstock.model.values import Nanos

TIMER_LATE_NS_MAX = SECOND_NS // 1000  # No event loop calls back in time to the nanosecond.


class Planned:
    """Something that will happen, unless it is cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualTime:
    def __init__(self, random: Random, start: Nanos) -> None:
        self.now = start
        self._random = random
        self._planned: list[tuple[Nanos, int, Planned]] = []
        self._order = count()

    def __call__(self) -> Nanos:
        return self.now

    def at(self, time: Nanos, callback: Callable[[], None]) -> Planned:
        planned = Planned(callback)
        heappush(self._planned, (time, next(self._order), planned))
        return planned

    def after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Planned:
        return self.at(self.now + delay_ns, callback)

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is planned."""
        while self._planned:
            time, _, planned = heappop(self._planned)
            callback, planned.callback = planned.callback, None
            if callback is not None:
                self.now = time
                callback()
                return True
        return False


class ProcessScheduler:
    """What one run of the broker plans: a `server.loop.Scheduler` whose plans end with the process."""

    def __init__(self, time: VirtualTime, random: Random) -> None:
        self._time = time
        self._random = random
        self.alive = True

    def soon(self, callback: Callable[[], None]) -> None:
        self._time.at(self._time.now, self._while_alive(callback))

    def from_thread(self, callback: Callable[[], None]) -> None:
        self.soon(callback)

    def after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Planned:
        late = self._random.randint(0, TIMER_LATE_NS_MAX)
        return self._time.after(delay_ns + late, self._while_alive(callback))

    def disk_after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Planned:
        return self._time.after(delay_ns, self._while_alive(callback))

    def _while_alive(self, callback: Callable[[], None]) -> Callable[[], None]:
        def call() -> None:
            if self.alive:
                callback()

        return call
