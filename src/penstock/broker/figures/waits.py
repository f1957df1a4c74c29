"""Durations, counted by their length: how long commands of each dialect take, and how long the messages of one queue
waited while somebody looks closely at it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.engine.queue import Queue
from penstock.limits import SECOND_NS
from penstock.model.consumers import Consumer
from penstock.model.kinds import Kind
from penstock.model.metrics import Durations
from penstock.model.values import Nanos

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


# One queue while somebody looks closely at it: how long its messages waited until they were taken. That is about
# the last minute, or the time since somebody looks, and is bounded. Nothing is counted for queues that nobody looks
# at.

WAITS_MAX = 4096
"""The newest waits are kept. A queue that delivers more in a minute shows a shorter time."""
SHOWN_MAX = 50

TAKEN = frozenset((Kind.FETCHED, Kind.HANDED_OVER))


class CloseUp:
    def __init__(self, queue: Queue, now: Nanos) -> None:
        self.queue = queue
        self.began = now
        self._waits: deque[tuple[Nanos, Nanos]] = deque(maxlen=WAITS_MAX)  # When, and how long.

    def note(self, event: Any) -> None:
        """Messages are about to be taken: their rows still show since when they were ready."""
        if type(event.sequence) is int:
            row = self.queue.rows.get(event.sequence)
            ready_since = [row.visible_at] if row else []
        else:
            rows = self.queue.rows.run(event.sequence[0], event.records)
            ready_since = [] if rows is None else rows["visible_at"].tolist()
        self._waits.extend([(event.time, event.time - since) for since in ready_since])

    def describe(self, now: Nanos, consumers: list[Consumer]) -> dict[str, Any]:
        """With the consumers that have had a message longest."""
        waits = [wait for when, wait in self._waits if when > now - WINDOW_SECONDS * SECOND_NS]
        p50, p99 = np.percentile(waits, (50, 99)) / SECOND_NS if waits else (None, None)
        never = now / SECOND_NS
        consumers.sort(key=lambda each: (each.oldest_lease or never, -each.taken_per_minute))
        return {
            "wait_p50": None if p50 is None else round(float(p50), 4),
            "wait_p99": None if p99 is None else round(float(p99), 4),
            "consumers": [msgspec.to_builtins(each) for each in consumers[:SHOWN_MAX]],
            "more_consumers": max(0, len(consumers) - SHOWN_MAX),
        }
