"""One queue while somebody looks closely at it: how long its messages waited until they were taken.

That is about the last minute, or the time since somebody looks, and is bounded. Nothing is counted for queues that
nobody looks at.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec
import numpy as np

from penstock.engine.queue import Queue
from penstock.limits import SECOND_NS
from penstock.model.consumers import Consumer
from penstock.model.kinds import Kind
from penstock.model.values import Nanos

WINDOW_SECONDS = 60
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
