"""One queue while somebody looks closely at it: how long its messages waited, and how its consumers are doing.

Everything is about the last minute, or the time since somebody looks, and is bounded. Nothing is counted for queues
that nobody looks at.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from penstock.engine.queue import Queue
from penstock.limits import SECOND_NS
from penstock.model.kinds import Kind
from penstock.model.values import Nanos

WINDOW_SECONDS = 60
WAITS_MAX = 4096
"""The newest waits are kept. A queue that delivers more in a minute shows a shorter time."""
CONSUMERS_MAX = 1000
"""So many consumers are counted in each second; more count as one without a name."""
LEASES_MAX = 1000
"""The leases that run out first are examined."""
SHOWN_MAX = 50

TAKEN = frozenset((Kind.FETCHED, Kind.HANDED_OVER))


class Consumer(msgspec.Struct):
    """What one consumer does."""

    consumer: str | None
    taken_per_minute: float = 0.0
    leases: int = 0
    oldest_lease: float | None = None  # Seconds since the epoch: when it took the message that it has had longest.
    waiting: int = 0  # Requests that wait for a message.


class _Lease(NamedTuple):
    consumer: int
    receives: int
    taken: Nanos


class CloseUp:
    def __init__(self, queue: Queue, now: Nanos) -> None:
        self.queue = queue
        self._began = now
        self._waits: deque[tuple[Nanos, Nanos]] = deque(maxlen=WAITS_MAX)  # When, and how long.
        self._taken: deque[tuple[int, Counter[int]]] = deque(maxlen=WINDOW_SECONDS + 1)  # By second and consumer.
        self._leases: dict[int, _Lease] = {}

    def note(self, event: Any) -> None:
        """Messages are about to be taken: their rows still show since when they were ready."""
        if type(event.sequence) is int:
            row = self.queue.rows.get(event.sequence)
            self._add(event.time, event.consumer, [row.visible_at] if row else [])
        else:
            rows = self.queue.rows.run(event.sequence[0], event.records)
            self._add(event.time, event.consumer[0], [] if rows is None else rows["visible_at"].tolist())

    def _add(self, now: Nanos, consumer: int, ready_since: list[Nanos]) -> None:
        self._waits.extend([(now, now - since) for since in ready_since])
        second = now // SECOND_NS
        if not self._taken or self._taken[-1][0] != second:
            self._taken.append((second, Counter()))
        counts = self._taken[-1][1]
        counts[consumer if consumer in counts or len(counts) < CONSUMERS_MAX else 0] += len(ready_since)

    def describe(self, now: Nanos, name_of: Callable[[int], str], waiting: Iterable[str | None]) -> dict[str, Any]:
        """`waiting`: the consumers that wait for a message, each as often as it does."""
        waits = [wait for when, wait in self._waits if when > now - WINDOW_SECONDS * SECOND_NS]
        p50, p99 = np.percentile(waits, (50, 99)) / SECOND_NS if waits else (None, None)
        found = self._consumers(now, name_of, waiting)
        return {
            "wait_p50": None if p50 is None else round(float(p50), 4),
            "wait_p99": None if p99 is None else round(float(p99), 4),
            "consumers": [msgspec.to_builtins(each) for each in found[:SHOWN_MAX]],
            "more_consumers": max(0, len(found) - SHOWN_MAX),
        }

    def _consumers(self, now: Nanos, name_of: Callable[[int], str], waiting: Iterable[str | None]) -> list[Consumer]:
        """Those that have had a message longest come first."""
        by_name: dict[str | None, Consumer] = {}

        def of(name: str | None) -> Consumer:
            return by_name.setdefault(name or None, Consumer(name or None))

        minutes = min(WINDOW_SECONDS, max(1.0, (now - self._began) / SECOND_NS)) / 60
        for number, count in self._taken_lately(now).items():
            of(name_of(number)).taken_per_minute = round(count / minutes, 1)
        for lease in self._current_leases():
            consumer, taken = of(name_of(lease.consumer)), lease.taken / SECOND_NS
            consumer.leases += 1
            consumer.oldest_lease = min(consumer.oldest_lease or taken, taken)
        for name in waiting:
            of(name).waiting += 1
        never = now / SECOND_NS
        return sorted(by_name.values(), key=lambda each: (each.oldest_lease or never, -each.taken_per_minute))

    def _taken_lately(self, now: Nanos) -> Counter[int]:
        oldest = now // SECOND_NS - WINDOW_SECONDS
        lately: Counter[int] = Counter()
        for second, counts in self._taken:
            if second > oldest:
                lately.update(counts)
        return lately

    def _current_leases(self) -> Iterable[_Lease]:
        """A row has the end of its lease only. So a lease is remembered as it was seen first: an extension does not
        make it younger."""
        queue, before = self.queue, self._leases
        self._leases = {}
        for visible_at, sequence in queue.leases.peek(LEASES_MAX, queue.rows.is_leased):
            row = queue.rows.get(sequence)
            assert row is not None
            known = before.get(sequence)
            if known is None or known[:2] != (row.consumer, row.receives):
                taken = visible_at - (row.lease_ns or queue.settings.visibility_ns)
                known = _Lease(row.consumer, row.receives, taken)
            self._leases[sequence] = known
        return self._leases.values()
