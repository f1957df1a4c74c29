"""All consumers and how fast they are, in the native API (`docs/native/administration.md`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

from msgspec import Struct

from penstock.dialects.native.parameters import Given, choice, number, parameters
from penstock.dialects.wire import http
from penstock.limits import INT32_MAX
from penstock.model.access import EVERYTHING, Access

PAGE_DEFAULT, PAGE_MAX = 100, 1000
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


class ConsumersQuery(Struct, frozen=True):
    queues: frozenset[str] | None = None  # Of these queues; None: of all.
    name: str = ""  # A part of the name of a consumer or its queue, in any case.
    sort: str = "time"
    descending: bool = True
    offset: int = 0
    limit: int = PAGE_DEFAULT
    access: Access = EVERYTHING  # Only of queues that it sees.

    def wants(self, consumer: Consumer) -> bool:
        return self.name in (consumer.consumer or "").lower() or self.name in consumer.queue.lower()

    def sorted(self, found: list[Consumer]) -> list[Consumer]:
        return sorted(found, key=sort_key(self.sort), reverse=self.descending)


class ConsumersReader(Protocol):
    async def page(self, query: ConsumersQuery) -> dict[str, Any]:
        """The chosen consumers. Whoever asks makes the broker count for a while."""


class Consumers:
    def __init__(self, reader: ConsumersReader, later: http.Later) -> None:
        self._reader = reader
        self._later = later
        self.routes: http.Routes = {(b"v1/consumers", 2): {b"GET": self._get, b"HEAD": self._get}}

    def _get(self, request: http.Request, _: bytes) -> http.Awaited:
        return self._later(self._answered(query_of(request)))

    async def _answered(self, query: ConsumersQuery) -> http.Response:
        return http.json_response(200, await self._reader.page(query), b"Cache-Control: no-store\r\n")


def query_of(request: http.Request) -> ConsumersQuery:
    """Raises `ProtocolError`."""
    given: Given = parameters(request, "queue", "name", "sort", "order", "offset", "limit")
    return ConsumersQuery(
        queues=frozenset(given["queue"]) if "queue" in given else None,
        name=given.get("name", [""])[0].lower(),
        sort=choice(given, "sort", SORTED_BY),
        descending=choice(given, "order", ("descending", "ascending")) == "descending",
        offset=number(given, "offset", 0, INT32_MAX, 0),
        limit=number(given, "limit", 1, PAGE_MAX, PAGE_DEFAULT),
        access=request.access,
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
