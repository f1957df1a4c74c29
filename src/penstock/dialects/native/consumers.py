"""All consumers and how fast they are, in the native API (`docs/native/administration.md`)."""

from __future__ import annotations

from functools import partial

from penstock.dialects.native.parameters import Given, choice, number, parameters
from penstock.dialects.wire import http
from penstock.limits import INT32_MAX, PAGE_DEFAULT, PAGE_MAX
from penstock.model.consumers import SORTED_BY, ConsumerList, ListConsumers
from penstock.model.queries import Pages, following


class Consumers:
    def __init__(self, asked: http.Asked) -> None:
        self._asked = asked
        self.routes: http.Routes = {(b"v1/consumers", 2): {b"GET": self._get, b"HEAD": self._get}}

    def _get(self, request: http.Request, _: bytes) -> http.Awaited:
        query = _query(parameters(request, "queue", "name", "sort", "order", "offset", "limit"))
        return self._asked(request, query, partial(_document, query))


def _document(query: Pages, found: ConsumerList) -> http.Response:
    document = {
        "time": found.time,
        "seconds": found.seconds,
        "total": found.total,
        "next": following(query, found),
        "consumers": found.rows,
    }
    return http.json_response(200, document, b"Cache-Control: no-store\r\n")


def _query(given: Given) -> ListConsumers:
    return ListConsumers(
        queues=frozenset(given["queue"]) if "queue" in given else None,
        name=given.get("name", [""])[0].lower(),
        sort=choice(given, "sort", SORTED_BY),
        descending=choice(given, "order", ("descending", "ascending")) == "descending",
        offset=number(given, "offset", 0, INT32_MAX, 0),
        limit=number(given, "limit", 1, PAGE_MAX, PAGE_DEFAULT),
    )
