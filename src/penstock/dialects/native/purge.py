"""Purging a queue in the native API, and looking at purges that take long."""

from __future__ import annotations

from penstock.dialects.native.jobs import JobRoutes
from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire.http import Asked, Awaited, Request, Response, Routes, not_found, queue_name, segments_of
from penstock.model.jobs import StartPurge


class Purges:
    def __init__(self, asked: Asked) -> None:
        self._jobs = JobRoutes("purges", "purges", asked)
        self.routes: Routes = {(b"v1/queues", 4): {b"DELETE": self._purge}, **self._jobs.routes}

    def _purge(self, request: Request, segment: bytes) -> Response | Awaited:
        parameters(request)
        if segment != b"messages":
            return not_found(request)
        return self._jobs.start(request, StartPurge(queue_name(segments_of(request.target)[2])))
