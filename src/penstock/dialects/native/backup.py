"""Backups in the native API: what there is to copy, and its bytes (`docs/backup.md`).

The service behind `BackupReader` reads them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from penstock.dialects.native.parameters import Given, number, parameters
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.model.client import Client
from penstock.model.streams import Source

_NUMBER_MAX = (1 << 63) - 1
_BYTES = b"Content-Type: application/octet-stream\r\nCache-Control: no-store\r\n"
_JSON = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
_Answer = TypeVar("_Answer")


class BackupReader(Protocol):
    """What reads the files. Raises `RequestError` and `EventsRemovedError`."""

    async def begin(self, client: Client) -> None:
        """Take note of a client, before it gets anything."""

    async def describe(self) -> Any:
        """What there is now, as a value for JSON. Its files stay for a while."""

    async def moment(self) -> Source:
        """The same as JSON, at a moment that all shards share."""

    async def log(self, start: int, end: int) -> Source: ...
    async def snapshot(self, offset: int) -> tuple[int, Source]: ...
    async def history(self) -> Source: ...


class Backup:
    """Requests in, streams out."""

    def __init__(self, reader: BackupReader, later: http.Later) -> None:
        self._reader = reader
        self._later = later
        self.routes: http.Routes = {
            (b"v1/backup", 2): {b"GET": self._state},
            (b"v1/backup", 3): {b"GET": self._part},
        }

    def _state(self, request: http.Request, _: bytes) -> http.Awaited:
        parameters(request)
        return self._later(self._begun(request, self._described))

    def _part(self, request: http.Request, segment: bytes) -> http.Response | http.Awaited:
        if segment == b"log":
            given = parameters(request, "from", "to")
            return self._later(self._begun(request, self._log, _needed(given, "from"), _needed(given, "to")))
        if segment == b"snapshot":
            given = parameters(request, "offset")
            return self._later(self._begun(request, self._snapshot, _needed(given, "offset")))
        if segment == b"history":
            parameters(request)
            return self._later(self._begun(request, self._history))
        if segment == b"moment":
            parameters(request)
            return self._later(self._begun(request, self._moment))
        return http.not_found(request)

    async def _begun(self, client: Client, read: Callable[..., Awaitable[_Answer]], *wanted: int) -> _Answer:
        await self._reader.begin(client)
        return await read(*wanted)

    async def _described(self) -> http.Response:
        return http.json_response(200, await self._reader.describe(), b"Cache-Control: no-store\r\n")

    async def _moment(self) -> http.Stream:
        return http.Stream(200, _JSON, await self._reader.moment())

    async def _log(self, start: int, end: int) -> http.Stream:
        if end < start:
            raise ProtocolError(f"to ({end}) is before from ({start})")
        return http.Stream(200, _BYTES, await self._reader.log(start, end), length=end - start)

    async def _snapshot(self, offset: int) -> http.Stream:
        size, source = await self._reader.snapshot(offset)
        return http.Stream(200, _BYTES, source, length=size)

    async def _history(self) -> http.Stream:
        return http.Stream(200, _BYTES, await self._reader.history())


def _needed(given: Given, name: str) -> int:
    if name not in given:
        raise ProtocolError(f"{name} is missing")
    return number(given, name, 0, _NUMBER_MAX, 0)
