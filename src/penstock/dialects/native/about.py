"""Connections and settings of the broker in the native API. `docs/native/administration.md` has it in prose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct, to_builtins

from penstock.dialects.native.parameters import number, parameters
from penstock.dialects.wire import http
from penstock.limits import INT32_MAX
from penstock.model.access import EVERY_NAME, Need, Verb

_PAGE_DEFAULT, _PAGE_MAX = 100, 1000
_ADMIN: Need = ((Verb.ADMIN,), EVERY_NAME)


class ConnectionState(Struct, frozen=True):
    """One open connection."""

    protocol: str
    address: str
    seconds: float  # Since it was opened.
    busy: bool  # It waits for the broker, or follows a stream.
    unsent_bytes: int  # What the client has not read.


class WaitingClient(Struct, frozen=True):
    """A client that waits for a message or a result."""

    kind: str  # worker, receiver or result.
    queue: str
    consumer: str | None


class ConnectionsReader(Protocol):
    def connections(self) -> list[ConnectionState]: ...
    def waiting(self) -> list[WaitingClient]: ...


class About:
    def __init__(self, reader: ConnectionsReader, settings: Callable[[], Sequence[dict[str, Any]]]) -> None:
        self._reader = reader
        self._settings = settings
        self.routes: http.Routes = {
            (b"v1/connections", 2): {b"GET": self._connections, b"HEAD": self._connections},
            (b"v1/settings", 2): {b"GET": self._list_settings, b"HEAD": self._list_settings},
        }

    def _connections(self, request: http.Request, _: bytes) -> http.Response:
        given = parameters(request, "queue", "offset", "limit")
        offset = number(given, "offset", 0, INT32_MAX, 0)
        limit = number(given, "limit", 1, _PAGE_MAX, _PAGE_DEFAULT)
        queues = given.get("queue")
        found = self._reader.connections() if request.access.allows(_ADMIN) and not queues else []
        seen = [each for each in self._reader.waiting() if request.access.sees(each.queue)]
        waiting = [each for each in seen if not queues or each.queue in queues]
        end = offset + limit
        document = {
            "total": len(found),
            "total_waiting": len(waiting),
            "next": end if end < max(len(found), len(waiting)) else None,
            "connections": found[offset:end],
            "waiting": waiting[offset:end],
        }
        return http.json_response(200, to_builtins(document), b"Cache-Control: no-store\r\n")

    def _list_settings(self, request: http.Request, _: bytes) -> http.Response:
        parameters(request)
        return http.json_response(200, {"settings": self._settings()}, b"Cache-Control: no-store\r\n")
