"""How consumers are doing: how many messages each takes, for how long it holds one, and what it gives back.

Everything is about the last minute, or the time since somebody looks, and is bounded. Nothing is counted while nobody
looks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from penstock.engine.queue import Queue
from penstock.limits import SECOND_NS
from penstock.model.consumers import Consumer
from penstock.model.kinds import Kind, kinds_where
from penstock.model.values import Nanos

WINDOW_SECONDS = 60
CONSUMERS_MAX = 2000
"""So many are counted apart, those of each queue; more count as one without a name."""
LEASES_MAX = 50_000
"""The newest leases whose beginning is known. How long others were held is not measured."""
LEASES_OF_QUEUE_MAX = 1000
"""The leases of a queue that run out first are examined."""
TIMES_MAX = 128
"""The newest times of a consumer are kept. One that is done with more in a minute shows a shorter time."""
_SLOT_SECONDS = 2  # What is counted together.

_TAKEN = kinds_where(lambda row: row.letters in ("F", "K"))
_HANDED_OVER = kinds_where(lambda row: row.letters == "K")
_RETRIED = kinds_where(lambda row: row.notice == "retry")
_FAILED = kinds_where(lambda row: row.notice == "drop" and row.letters != "N")
_SETTLED = kinds_where(lambda row: row.notice in ("finish", "retry", "drop")) - _HANDED_OVER
NOTED = _TAKEN | _SETTLED

NameOf = Callable[[int], str]


class _Pace:
    """What one consumer of a queue has done lately."""

    __slots__ = ("slots", "times")

    def __init__(self) -> None:
        self.slots: deque[list[int]] = deque(maxlen=WINDOW_SECONDS // _SLOT_SECONDS + 1)
        self.times: deque[tuple[Nanos, Nanos]] = deque(maxlen=TIMES_MAX)  # When it was done, and how long it took.

    def add(self, now: Nanos, taken: int, retried: int, failed: int) -> None:
        number = now // (_SLOT_SECONDS * SECOND_NS)
        if not self.slots or self.slots[-1][0] != number:
            self.slots.append([number, 0, 0, 0])
        slot = self.slots[-1]
        slot[1] += taken
        slot[2] += retried
        slot[3] += failed

    def describe(self, now: Nanos, minutes: float, consumer: Consumer) -> None:
        oldest = (now - WINDOW_SECONDS * SECOND_NS) // (_SLOT_SECONDS * SECOND_NS)
        counts = [sum(column) for column in zip(*[slot[1:] for slot in self.slots if slot[0] >= oldest], strict=True)]
        taken, retried, failed = counts or (0, 0, 0)
        consumer.taken_per_minute += round(taken / minutes, 1)
        consumer.retried_per_minute += round(retried / minutes, 1)
        consumer.failed_per_minute += round(failed / minutes, 1)
        times = [took for when, took in self.times if when > now - WINDOW_SECONDS * SECOND_NS]
        if times:
            p50, p99 = np.percentile(times, (50, 99)) / SECOND_NS
            consumer.times = len(times)
            consumer.seconds_p50, consumer.seconds_p99 = round(float(p50), 4), round(float(p99), 4)


class Paces:
    def __init__(self) -> None:
        self._paces: dict[int, dict[int, _Pace]] = {}  # By queue and consumer, as numbers.
        self._count = 0
        self._leases: dict[tuple[int, int, int], Nanos] = {}  # When consumers took what they hold: the oldest first.

    def has(self, queue: int) -> bool:
        return queue in self._paces

    def note(self, event: Any) -> None:
        """For events of the kinds in `NOTED`, before they are applied."""
        kind, now = event.kind, event.time
        one = type(event.sequence) is int
        for sequence, consumer in zip(
            *(([event.sequence], [event.consumer]) if one else (event.sequence, event.consumer)), strict=True
        ):
            key = (event.queue, sequence, consumer)
            pace = self._of(event.queue, consumer)
            if kind in _TAKEN:
                pace.add(now, 1, 0, 0)
                if kind not in _HANDED_OVER:
                    self._remember(key, now)
            else:
                began = self._leases.pop(key, None)
                if began is not None:
                    pace.times.append((now, now - began))
                with_delivery = kind == Kind.DEAD_LETTERED and event.fetched
                pace.add(now, with_delivery, kind in _RETRIED, kind in _FAILED)

    def _of(self, queue: int, consumer: int) -> _Pace:
        of_queue = self._paces.setdefault(queue, {})
        found = of_queue.get(consumer)
        if found is None:
            if self._count >= CONSUMERS_MAX:
                return of_queue.setdefault(0, _Pace())
            self._count += 1
            found = of_queue[consumer] = _Pace()
        return found

    def _remember(self, key: tuple[int, int, int], taken: Nanos) -> None:
        self._leases.pop(key, None)
        self._leases[key] = taken
        if len(self._leases) > LEASES_MAX:
            del self._leases[next(iter(self._leases))]

    def consumers(
        self, queue: Queue, now: Nanos, began: Nanos, name_of: NameOf, waiting: Iterable[str | None]
    ) -> list[Consumer]:
        """Those of a queue. `began`: when counting began; `waiting`: those that wait for a message, each as often as
        it does."""
        by_name: dict[str | None, Consumer] = {}

        def of(name: str | None) -> Consumer:
            return by_name.setdefault(name or None, Consumer(name or None, queue.name))

        minutes = min(WINDOW_SECONDS, max(1.0, (now - began) / SECOND_NS)) / 60
        for number, pace in self._paces.get(queue.number, {}).items():
            pace.describe(now, minutes, of(name_of(number)))
        for number, taken in self._current_leases(queue):
            consumer = of(name_of(number))
            consumer.leases += 1
            consumer.oldest_lease = min(consumer.oldest_lease or taken, taken)
        for name in waiting:
            of(name).waiting += 1
        return [each for each in by_name.values() if each.is_there]

    def _current_leases(self, queue: Queue) -> Iterator[tuple[int, float]]:
        """Consumers, and when each took what it holds. A row has the end of its lease only. So a lease that is older
        than counting is remembered as it was seen first: an extension does not make it younger."""
        for visible_at, sequence in queue.leases.peek(LEASES_OF_QUEUE_MAX, queue.rows.is_leased):
            row = queue.rows.get(sequence)
            assert row is not None
            key = (queue.number, sequence, row.consumer)
            taken = self._leases.get(key)
            if taken is None:
                taken = visible_at - (row.lease_ns or queue.settings.visibility_ns)
                self._remember(key, taken)
            yield row.consumer, taken / SECOND_NS
