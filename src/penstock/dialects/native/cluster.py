"""Who serves what in the native API: the shards, and the processes that have them. `docs/native/administration.md`
has it in prose."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import to_builtins

from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire import http
from penstock.model.cluster import ClusterState


class Cluster:
    def __init__(self, look: Callable[[], ClusterState]) -> None:
        self._look = look
        self.routes: http.Routes = {(b"v1/cluster", 2): {b"GET": self._get, b"HEAD": self._get}}

    def _get(self, request: http.Request, _: bytes) -> http.Response:
        parameters(request)
        return http.json_response(200, to_builtins(self._look()), b"Cache-Control: no-store\r\n")
