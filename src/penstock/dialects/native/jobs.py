"""Jobs in the native API: redrives and purges, which continue after their request was answered."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire.http import Request, Response, Routes, error_response, failure, json_response, require
from penstock.errors import Fault, PenstockError, RequestError
from penstock.model.access import Verb


class Job(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def failure(self) -> PenstockError | None: ...

    def progress(self) -> dict[str, Any]:
        """What the job is about, and how far it has come."""


class Jobs(Protocol):
    """All jobs of one kind."""

    def find(self, job: str) -> Job | None: ...
    def all(self) -> Iterable[Job]: ...
    def end(self, job: str) -> bool:
        """End a job early. Returns whether it exists."""


class JobRoutes:
    """The paths below which jobs of one kind are listed, shown and ended."""

    def __init__(self, name: str, plural: str, jobs: Jobs) -> None:
        self._path = f"/v1/{name}"
        self._plural = plural
        self._jobs = jobs
        root = f"v1/{name}".encode()
        self.routes: Routes = {
            (root, 2): {b"GET": self._all, b"HEAD": self._all},
            (root, 3): {b"GET": self._show, b"HEAD": self._show, b"DELETE": self._end},
        }

    async def begun(self, beginning: Awaitable[Job]) -> Response:
        """The answer to the request that has begun a job: when it is over, or when that takes long."""
        job = await beginning
        if job.failure is not None:
            return failure(job.failure)
        if job.state == "running":
            return json_response(202, _document(job), f"Location: {self._path}/{job.id}\r\n".encode())
        return json_response(200, _document(job))

    def _all(self, request: Request, _: bytes) -> Response:
        parameters(request)
        seen = [_document(job) for job in self._jobs.all() if request.access.sees(job.queue)]
        return json_response(200, {self._plural: seen})

    def _show(self, request: Request, segment: bytes) -> Response:
        job = self._find(request, segment)
        return json_response(200, _document(job)) if job else self._unknown(segment)

    def _end(self, request: Request, segment: bytes) -> Response:
        job = self._find(request, segment)
        if job is None:
            return self._unknown(segment)
        require(request.access, ((Verb.MANAGE,), job.queue))
        self._jobs.end(job.id)
        return Response(204)

    def _find(self, request: Request, segment: bytes) -> Job | None:
        job = self._jobs.find(segment.decode("latin-1"))
        return job if job and request.access.sees(job.queue) else None

    def _unknown(self, segment: bytes) -> Response:
        return error_response(Fault.NO_JOB, f"{segment.decode('latin-1')}; GET {self._path} lists the {self._plural}")


def _document(job: Job) -> dict[str, Any]:
    document = {"job": job.id, "state": job.state, **job.progress()}
    if job.failure is not None:
        error = job.failure.error if isinstance(job.failure, RequestError) else Fault.UNREADABLE
        document |= {"error": str(job.failure), "code": error.code}
    return document
