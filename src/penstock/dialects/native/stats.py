"""Figures of queues in the native API: now, over the last hour, and live (`docs/native/administration.md`).

The figures are made by the service that `StatsReader` describes.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from penstock.dialects.native.parameters import Given, choice, flag, number, parameters
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.limits import INT32_MAX
from penstock.model.access import EVERYTHING, Access

_PAGE_DEFAULT, _PAGE_MAX = 100, 1000
_STREAM = (
    b"Content-Type: text/event-stream\r\nCache-Control: no-store\r\n"
    b"X-Accel-Buffering: no\r\n"  # Asks a proxy in front to pass events on as they come.
)

CLOSE_UPS_MAX = 10
"""So many queues may be watched with their consumers in one stream."""

SORTED_BY = (
    *("name", "ready", "growth", "leased", "delayed", "dead"),
    *("ready_since", "waiting", "in", "out", "retried", "failed"),
)


class Figures(Struct, frozen=True, gc=False, rename={"entered": "in", "left": "out"}):
    """One queue at one moment. Rates are messages a second; None: not counted in that time."""

    name: str
    channel: bool
    dead_letters: bool  # Another queue names it as its dead-letter queue.
    ready: int
    leased: int
    delayed: int
    kept: int
    damaged: int
    ready_since: float | None  # Seconds since the epoch: when the message that waits longest became ready.
    waiting: int  # Clients that wait for a message.
    entered: float
    left: float
    delivered: float | None
    retried: float | None
    failed: float | None
    growth: int | None = None  # Ready messages more, or fewer, than a minute ago; None if they wait for nobody.

    @property
    def dead(self) -> int:
        return self.ready if self.dead_letters else 0


class StatsQuery(Struct, frozen=True):
    """What a client wants to know of which queues."""

    name: str = ""  # A part of the name, in any case.
    queues: frozenset[str] | None = None  # Exactly these; None: all.
    dead_letters: bool = False  # Only dead-letter queues.
    sort: str = "name"
    descending: bool = False
    offset: int = 0
    limit: int = _PAGE_DEFAULT
    history: bool = False
    consumers: bool = False  # With the waits and the consumers of the queues, which are named.
    access: Access = EVERYTHING  # Only queues that it sees.

    def wants(self, figures: Figures) -> bool:
        return (
            (self.queues is None or figures.name in self.queues)
            and self.name in figures.name.lower()
            and (figures.dead_letters or not self.dead_letters)
        )


class StatsReader(Protocol):
    async def page(self, query: StatsQuery) -> dict[str, Any]:
        """Figures of the chosen queues and of all together."""

    async def watch(self, query: StatsQuery) -> http.Source:
        """The figures once a second, as Server-Sent Events. Raises `RequestError` if there are too many watchers."""


class Stats:
    def __init__(self, reader: StatsReader, later: http.Later) -> None:
        self._reader = reader
        self._later = later
        self.routes: http.Routes = {
            (b"v1/stats", 2): {b"GET": self._get, b"HEAD": self._get},
            (b"v1/stats", 3): {b"GET": self._stream, b"HEAD": self._stream},
        }

    def _get(self, request: http.Request, _: bytes) -> http.Awaited:
        known = ("queue", "name", "dead_letters", "sort", "order", "offset", "limit", "history")
        given = parameters(request, *known)
        return self._later(self._answered(_query(given, request.access)))

    async def _answered(self, query: StatsQuery) -> http.Response:
        return http.json_response(200, await self._reader.page(query), b"Cache-Control: no-store\r\n")

    def _stream(self, request: http.Request, segment: bytes) -> http.Response | http.Awaited:
        if segment != b"stream":
            return http.not_found(request)
        given = parameters(request, "queue", "queues", "consumers")
        query = _query(given, request.access)
        if query.consumers and not 1 <= len(query.queues or ()) <= CLOSE_UPS_MAX:
            raise ProtocolError(f"consumers needs the names of 1 to {CLOSE_UPS_MAX} queues, as queue")
        if not flag(given, "queues", default=True):
            query = msgspec.structs.replace(query, queues=frozenset())
        return self._later(self._watched(query))

    async def _watched(self, query: StatsQuery) -> http.Stream:
        return http.Stream(200, _STREAM, await self._reader.watch(query), endless=True)


def _query(given: Given, access: Access) -> StatsQuery:
    return StatsQuery(
        name=given.get("name", [""])[0].lower(),
        queues=frozenset(given["queue"]) if "queue" in given else None,
        dead_letters=flag(given, "dead_letters", default=False),
        sort=choice(given, "sort", SORTED_BY),
        descending=choice(given, "order", ("ascending", "descending")) == "descending",
        offset=number(given, "offset", 0, INT32_MAX, 0),
        limit=number(given, "limit", 1, _PAGE_MAX, _PAGE_DEFAULT),
        history=flag(given, "history", default=False),
        consumers=flag(given, "consumers", default=False),
        access=access,
    )


def sort_key(field: str) -> Callable[[Figures], Any]:
    """By which figure to sort. A queue where nothing waits, or nothing was counted, comes first."""
    attribute = {"in": "entered", "out": "left"}.get(field, field)
    if field == "name":
        return lambda figures: figures.name
    if field == "ready_since":  # The longest wait is the highest.
        return lambda figures: (-figures.ready_since if figures.ready_since else -float("inf"), figures.name)
    return lambda figures: (cast("float", getattr(figures, attribute)) or 0, figures.name)


def awaits_consumers(figures: Figures, lasting: AbstractSet[str]) -> bool:
    return not figures.dead_letters and figures.name not in lasting


SUMMED = ("ready", "leased", "delayed", "kept", "damaged", "dead", "waiting", "entered", "left")
COUNTED = ("delivered", "retried", "failed")


def totals(all_figures: list[Figures], lasting: AbstractSet[str]) -> dict[str, Any]:
    """All queues together. `lasting`: queues whose messages stay, consumed or not; they wait for nobody. So `ready`
    has neither these nor dead letters."""
    columns = {field: sum([getattr(each, field) for each in all_figures]) for field in SUMMED}
    if any(each.delivered is not None for each in all_figures) or not all_figures:
        counted = {field: sum([getattr(each, field) or 0 for each in all_figures]) for field in COUNTED}
    else:
        counted = dict.fromkeys(COUNTED)
    waiting = [each for each in all_figures if awaits_consumers(each, lasting)]
    columns["lasting"] = sum([each.ready for each in all_figures if each.name in lasting and not each.dead_letters])
    columns["ready"] = sum([each.ready for each in waiting])
    since = min([each.ready_since for each in waiting if each.ready_since], default=None)
    summed = columns | counted
    summed["in"], summed["out"] = round(summed.pop("entered"), 2), round(summed.pop("left"), 2)
    return {"queues": len(all_figures), **summed, "ready_since": since}
