"""Purging a queue in the native API, and looking at purges that take long."""

from __future__ import annotations

from typing import Protocol

from penstock.dialects.native.jobs import Job, JobRoutes, Jobs
from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire.http import (
    Awaited,
    Later,
    Refusal,
    Request,
    Response,
    Routes,
    check,
    not_found,
    queue_name,
    segments_of,
)
from penstock.model.client import Client
from penstock.model.commands import Purge


class Purging(Jobs, Protocol):
    """The service that deletes the messages, however long that takes."""

    async def purge(self, client: Client, queue: str) -> Job: ...


class Purges:
    """Requests in, jobs out."""

    def __init__(self, purging: Purging, later: Later, refusal: Refusal) -> None:
        self._purging = purging
        self._later = later
        self._refusal = refusal
        self._jobs = JobRoutes("purges", "purges", purging)
        self.routes: Routes = {(b"v1/queues", 4): {b"DELETE": self._purge}, **self._jobs.routes}

    def _purge(self, request: Request, segment: bytes) -> Response | Awaited:
        parameters(request)
        if segment != b"messages":
            return not_found(request)
        queue = queue_name(segments_of(request.target)[2])
        check(self._refusal(request, Purge(queue)))
        return self._later(self._jobs.begun(self._purging.purge(request, queue)))
