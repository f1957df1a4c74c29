"""Durations, counted by their length, and how long commands of each dialect take."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

from penstock.model.metrics import Durations

BOUNDS_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


WINDOW_SECONDS = 60


class Mark(NamedTuple):
    """What a histogram had counted at one time, in seconds."""

    time: float
    counts: tuple[int, ...]
    sum: float


class Histogram:
    """Durations, counted by their length."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum += seconds

    def mark(self, time: float) -> Mark:
        return Mark(time, tuple(self._counts), self.sum)

    def value(self, *labels: str) -> Durations:
        return Durations(labels, list(self._counts), self.sum)


class LastMinute:
    """What a histogram has counted in the last minute, as exactly as it was looked at."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._marks: deque[Mark] = deque()

    def look(self, now: float) -> None:
        self._marks.append(self._histogram.mark(now))
        while len(self._marks) > 1 and self._marks[1].time <= now - WINDOW_SECONDS:
            self._marks.popleft()

    def describe(self, now: float) -> dict[str, Any]:
        """`p99`: 99 of 100 took so many seconds at most. `busy`: the part of the time that they took together."""
        end = self._histogram.mark(now)
        begin = self._marks[0] if self._marks else end
        counts = [after - before for before, after in zip(begin.counts, end.counts, strict=True)]
        passed = end.time - begin.time
        busy = min(1.0, (end.sum - begin.sum) / passed) if passed > 0 else 0.0
        return {"count": sum(counts), "p99": _p99(counts), "busy": round(busy, 3)}


def _p99(counts: list[int]) -> float | None:
    """Within a bucket, durations are taken to be spread evenly. What is beyond the last bound counts as it."""
    wanted, passed = 0.99 * sum(counts), 0
    for lower, upper, count in zip((0.0, *BOUNDS_SECONDS), BOUNDS_SECONDS, counts, strict=False):
        if count and passed + count >= wanted:
            return round(lower + (upper - lower) * (wanted - passed) / count, 5)
        passed += count
    return BOUNDS_SECONDS[-1] if sum(counts) else None


class Latencies:
    """From a command to its answer, by dialect."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.by_dialect: defaultdict[str, Histogram] = defaultdict(Histogram)
        self._clock = clock

    def timed(self, dialect: str, reply: Callable[[Any], None]) -> Callable[[Any], None]:
        """A reply that also records how long it took until it was called."""
        begun = self._clock()

        def reply_and_record(answer: Any) -> None:
            self.by_dialect[dialect].observe(self._clock() - begun)
            reply(answer)

        return reply_and_record
