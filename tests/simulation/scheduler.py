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
    """Something that will happen, unless it is cancelled. `not_before`: when it may happen, once it is due."""

    __slots__ = ("callback", "not_before")

    def __init__(self, callback: Callable[[], None], not_before: Callable[[], Nanos]) -> None:
        self.callback: Callable[[], None] | None = callback
        self.not_before = not_before

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

    def at(self, time: Nanos, callback: Callable[[], None], not_before: Callable[[], Nanos] = lambda: 0) -> Planned:
        planned = Planned(callback, not_before)
        heappush(self._planned, (time, next(self._order), planned))
        return planned

    def after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Planned:
        return self.at(self.now + delay_ns, callback)

    def step(self) -> bool:
        """Let the next thing happen; False if nothing is planned."""
        while self._planned:
            time, _, planned = heappop(self._planned)
            if (later := planned.not_before()) > time:
                heappush(self._planned, (later, next(self._order), planned))
                continue
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
        self.stopped_until: Nanos = 0

    def stop(self, until: Nanos) -> None:
        """As SIGSTOP does, with SIGCONT at that time."""
        self.stopped_until = max(until, self.stopped_until)

    @property
    def is_stopped(self) -> bool:
        return self._time.now < self.stopped_until

    def soon(self, callback: Callable[[], None]) -> None:
        self.at(self._time.now, callback)

    def from_thread(self, callback: Callable[[], None]) -> None:
        self.soon(callback)

    def after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Planned:
        late = self._random.randint(0, TIMER_LATE_NS_MAX)
        return self.at(self._time.now + delay_ns + late, callback)

    def disk_after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Planned:
        return self.at(self._time.now + delay_ns, callback)

    def at(self, time: Nanos, callback: Callable[[], None]) -> Planned:
        return self._time.at(time, lambda: self.run(callback), lambda: self.stopped_until)

    def run(self, callback: Callable[[], None]) -> None:
        if self.alive:
            callback()
