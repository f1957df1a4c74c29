"""Connections, settings, and who asks, in the native API. `docs/native/administration.md` has it in prose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec import to_builtins

from penstock.dialects.native.parameters import number, parameters
from penstock.dialects.wire import http
from penstock.limits import INT32_MAX, PAGE_DEFAULT, PAGE_MAX
from penstock.model.access import EVERY_NAME, SOME_NAME, Need, Verb
from penstock.model.cluster import ClusterState
from penstock.model.connections import ConnectionList, ListConnections

_ADMIN: Need = ((Verb.ADMIN,), EVERY_NAME)


class About:
    def __init__(self, asked: http.Asked, settings: Callable[[], Sequence[dict[str, Any]]]) -> None:
        self._asked = asked
        self._settings = settings
        self.routes: http.Routes = {
            (b"v1/connections", 2): {b"GET": self._connections, b"HEAD": self._connections},
            (b"v1/settings", 2): {b"GET": self._list_settings, b"HEAD": self._list_settings},
            (b"v1/identity", 2): {b"GET": _identity, b"HEAD": _identity},
        }

    def _connections(self, request: http.Request, _: bytes) -> http.Awaited:
        given = parameters(request, "queue", "offset", "limit")
        query = ListConnections(
            number(given, "offset", 0, INT32_MAX, 0),
            number(given, "limit", 1, PAGE_MAX, PAGE_DEFAULT),
            frozenset(given["queue"]) if "queue" in given else None,
        )
        return self._asked(request, query, partial(_document, query.offset + query.limit))

    def _list_settings(self, request: http.Request, _: bytes) -> http.Response:
        parameters(request)
        return http.json_response(200, {"settings": self._settings()}, b"Cache-Control: no-store\r\n")


def _identity(request: http.Request, _: bytes) -> http.Response:
    """Who asks, and what that client may do somewhere: what to offer it at all."""
    parameters(request)
    access = request.access
    document = {
        "name": access.name or None,
        "kind": access.kind,
        "scopes": [scope.text for scope in access.scopes],
        "verbs": [verb for verb in Verb if access.may(verb, SOME_NAME)],
        "administrator": access.sees_all,
        "reads_audit": access.reads("_audit"),
    }
    return http.json_response(200, document, b"Cache-Control: no-store\r\n")


def _document(end: int, found: ConnectionList) -> http.Response:
    document = {
        "total": found.total,
        "total_waiting": found.total_waiting,
        "next": end if end < found.all else None,
        "connections": found.rows,
        "waiting": found.waiting,
    }
    return http.json_response(200, document, b"Cache-Control: no-store\r\n")


class Cluster:
    def __init__(self, look: Callable[[], ClusterState]) -> None:
        self._look = look
        self.routes: http.Routes = {(b"v1/cluster", 2): {b"GET": self._get, b"HEAD": self._get}}

    def _get(self, request: http.Request, _: bytes) -> http.Response:
        parameters(request)
        return http.json_response(200, to_builtins(self._look()), b"Cache-Control: no-store\r\n")
