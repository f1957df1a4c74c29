"""Consumers and how fast they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec import Struct

from penstock.model.queries import Page, Pages

TIMES_MIN = 3
"""With fewer nobody says how long a consumer takes for a message."""

_FIGURES = {
    "taken": "taken_per_minute",
    "p99": "seconds_p99",
    "leases": "leases",
    "waiting": "waiting",
    "retried": "retried_per_minute",
    "failed": "failed_per_minute",
}

SORTED_BY = ("time", "consumer", "queue", "oldest_lease", *_FIGURES)


class Consumer(Struct):
    """What one consumer of a queue does."""

    consumer: str | None
    queue: str
    taken_per_minute: float = 0.0
    seconds_p50: float | None = None  # From the delivery of a message until it was settled.
    seconds_p99: float | None = None
    times: int = 0  # Messages that these two are about, up to 128.
    leases: int = 0
    oldest_lease: float | None = None  # Seconds since the epoch: when it took the message that it has had longest.
    waiting: int = 0  # Requests that wait for a message.
    retried_per_minute: float = 0.0
    failed_per_minute: float = 0.0

    @property
    def is_there(self) -> bool:
        """Whether it did anything lately, or will."""
        counted = self.taken_per_minute or self.retried_per_minute or self.failed_per_minute
        return bool(counted or self.leases or self.waiting or self.seconds_p50 is not None)

    @property
    def time(self) -> float:
        """How long it takes for a message: half of those that it was done with; 0 if these are too few to tell."""
        return self.seconds_p50 or 0.0 if self.times >= TIMES_MIN else 0.0


class ListConsumers(Pages, frozen=True):
    """Whoever asks makes the broker count for a while."""

    queues: frozenset[str] | None = None  # Of these queues; None: of all.
    name: str = ""  # A part of the name of a consumer or its queue, in any case.
    sort: str = "time"
    descending: bool = True

    def wants(self, consumer: Consumer) -> bool:
        return self.name in (consumer.consumer or "").lower() or self.name in consumer.queue.lower()

    def sorted(self, found: list[Consumer]) -> list[Consumer]:
        return sorted(found, key=sort_key(self.sort), reverse=self.descending)


class ConsumerList(Page, frozen=True):
    rows: list[Consumer]
    time: float  # When that was so, in seconds since the epoch.
    seconds: float  # So long they have been counted.


def joined(query: ListConsumers, lists: Sequence[ConsumerList]) -> ConsumerList:
    found = query.sorted([each for one in lists for each in one.rows])
    return ConsumerList(
        sum([each.total for each in lists]),
        found[query.offset : query.offset + query.limit],
        max([each.time for each in lists]),
        min([each.seconds for each in lists]),
    )


def sort_key(field: str) -> Callable[[Consumer], Any]:
    """By which figure to sort. Who has none comes first."""
    if field == "time":
        return lambda each: (each.time, each.queue, each.consumer or "")
    if field == "consumer":
        return lambda each: (each.consumer or "", each.queue)
    if field == "queue":
        return lambda each: (each.queue, each.consumer or "")
    if field == "oldest_lease":  # The longest is the highest.
        return lambda each: (-each.oldest_lease if each.oldest_lease else -float("inf"), each.queue)
    return lambda each: (cast("float", getattr(each, _FIGURES[field])) or 0, each.queue, each.consumer or "")
