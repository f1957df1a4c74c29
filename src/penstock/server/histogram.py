"""Durations, counted by their length, and how long commands of each dialect take."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate
from time import perf_counter
from typing import Any

BOUNDS_SECONDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Histogram:
    """Durations, counted by their length."""

    def __init__(self) -> None:
        self.sum = 0.0
        self._counts = [0] * (len(BOUNDS_SECONDS) + 1)

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS_SECONDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """How many took at most this long: for each bound, and without a bound."""
        bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True))


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
