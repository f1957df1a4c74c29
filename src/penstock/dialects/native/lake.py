"""The lake in the native API: messages of queues by minute, from the files that the pipeline has written."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.dialects.native.parameters import moment, parameters
from penstock.dialects.wire import http
from penstock.errors import ProtocolError
from penstock.limits import SECOND_NS
from penstock.model.lake import MinutesQuery

_ROWS_MAX = 1000
_MINUTE = 60


class LakeReader(Protocol):
    async def minutes(self, query: MinutesQuery) -> dict[str, Any]:
        """Raises `RequestError` if there is no lake, or it cannot be read."""


class Lake:
    def __init__(self, reader: LakeReader, later: http.Later) -> None:
        self._reader = reader
        self._later = later
        self.routes: http.Routes = {(b"v1/lake", 3): {b"GET": self._minutes, b"HEAD": self._minutes}}

    def _minutes(self, request: http.Request, segment: bytes) -> http.Response | http.Awaited:
        if segment != b"queue_minutes":
            return http.not_found(request)
        given = parameters(request, "queue", "since", "until")
        if len(given.get("queue", ())) > 1:
            raise ProtocolError("queue is given more than once")
        queue = http.checked_name(given["queue"][0].encode()) if "queue" in given else None
        if "since" not in given or "until" not in given:
            raise ProtocolError("since and until are needed: RFC 3339 with a zone, or seconds since the epoch")
        since, until = (moment(given, name, 0) / SECOND_NS for name in ("since", "until"))
        return self._later(self._answered(MinutesQuery(queue, since, until, _step(until - since))))

    async def _answered(self, query: MinutesQuery) -> http.Response:
        return http.json_response(200, await self._reader.minutes(query), b"Cache-Control: no-store\r\n")


def _step(seconds: float) -> int:
    """As many minutes for each row as it takes to have few rows."""
    minutes = max(1, int(seconds // _MINUTE) + 1)
    return -(-minutes // _ROWS_MAX) * _MINUTE
