"""Figures of queues in the native API: now, over the last hour, and live (`docs/native/administration.md`)."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from penstock.dialects.native.parameters import Given, choice, flag, number, parameters
from penstock.dialects.wire import http
from penstock.dialects.wire.flows import Rendered
from penstock.errors import ProtocolError
from penstock.limits import INT32_MAX, PAGE_DEFAULT, PAGE_MAX
from penstock.model.figures import CLOSE_UPS_MAX, SORTED_BY, FiguresPage, Head, Live, ReadFigures, WatchFigures
from penstock.model.queries import following
from penstock.model.streams import Flow

_STREAM = (
    b"Content-Type: text/event-stream\r\nCache-Control: no-store\r\n"
    b"X-Accel-Buffering: no\r\n"  # Asks a proxy in front to pass events on as they come.
)
_encode = msgspec.json.Encoder().encode


class Stats:
    def __init__(self, asked: http.Asked) -> None:
        self._asked = asked
        self.routes: http.Routes = {
            (b"v1/stats", 2): {b"GET": self._get, b"HEAD": self._get},
            (b"v1/stats", 3): {b"GET": self._stream, b"HEAD": self._stream},
        }

    def _get(self, request: http.Request, _: bytes) -> http.Awaited:
        known = ("queue", "name", "dead_letters", "sort", "order", "offset", "limit", "history")
        query = _query(parameters(request, *known))
        return self._asked(request, query, partial(_page, query))

    def _stream(self, request: http.Request, segment: bytes) -> http.Response | http.Awaited:
        if segment != b"stream":
            return http.not_found(request)
        given = parameters(request, "queue", "queues", "consumers")
        queues, consumers = _queues(given), flag(given, "consumers", default=False)
        if consumers and not 1 <= len(queues or ()) <= CLOSE_UPS_MAX:
            raise ProtocolError(f"consumers needs the names of 1 to {CLOSE_UPS_MAX} queues, as queue")
        if not flag(given, "queues", default=True):
            queues = frozenset()
        return self._asked(request, WatchFigures(queues, consumers), _streamed)


def _streamed(flow: Flow) -> http.Stream:
    return http.Stream(200, _STREAM, Rendered(flow.source, _event), endless=True)


def _event(live: Live) -> bytes:
    consumers = {} if live.consumers is None else {"consumers": live.consumers}
    document = _head(live.head) | {"queues": live.queues, "removed": live.removed} | consumers
    return b"data: %b\n\n" % _encode(document)


def _page(query: ReadFigures, page: FiguresPage) -> http.Response:
    document = _head(page.head) | {
        "total": page.total,
        "next": following(query, page),
        "queues": page.rows,
        **({"history": page.hour} if page.hour else {}),
    }
    return http.json_response(200, document, b"Cache-Control: no-store\r\n")


def _head(head: Head) -> dict[str, Any]:
    return {
        "time": head.time,
        "totals": head.totals,
        "attention": head.attention,
        "commits": head.commits,
        "disk": head.disk.document(),
        **({"couriers": head.couriers} if head.couriers else {}),
    }


def _queues(given: Given) -> frozenset[str] | None:
    return frozenset(given["queue"]) if "queue" in given else None


def _query(given: Given) -> ReadFigures:
    return ReadFigures(
        name=given.get("name", [""])[0].lower(),
        queues=_queues(given),
        dead_letters=flag(given, "dead_letters", default=False),
        sort=choice(given, "sort", SORTED_BY),
        descending=choice(given, "order", ("ascending", "descending")) == "descending",
        offset=number(given, "offset", 0, INT32_MAX, 0),
        limit=number(given, "limit", 1, PAGE_MAX, PAGE_DEFAULT),
        history=flag(given, "history", default=False),
    )
