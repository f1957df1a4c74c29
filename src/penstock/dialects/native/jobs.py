"""Jobs in the native API: redrives and purges, which continue after their request was answered."""

from __future__ import annotations

from typing import Any

from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire.http import (
    Asked,
    Awaited,
    Request,
    Response,
    Routes,
    error_response,
    json_response,
    not_found,
    queue_name,
    segments_of,
)
from penstock.errors import Fault
from penstock.model.jobs import EndJob, FindJob, JobList, JobState, Kind, ListJobs, NoJob, StartPurge
from penstock.model.queries import Query


class JobRoutes:
    """The paths below which jobs of one kind are listed, shown and ended."""

    def __init__(self, name: str, kind: Kind, asked: Asked) -> None:
        self._path = f"/v1/{name}"
        self._kind: Kind = kind
        self._asked = asked
        root = f"v1/{name}".encode()
        self.routes: Routes = {
            (root, 2): {b"GET": self._all, b"HEAD": self._all},
            (root, 3): {b"GET": self._show, b"HEAD": self._show, b"DELETE": self._end},
        }

    def start(self, request: Request, query: Query) -> Awaited:
        """Begin a job. It is answered when it is over, or when that takes long."""
        return self._asked(request, query, self._begun)

    def _begun(self, job: JobState) -> Response:
        if job.state == "running":
            return json_response(202, _document(job), f"Location: {self._path}/{job.job}\r\n".encode())
        return json_response(200, _document(job))

    def _all(self, request: Request, _: bytes) -> Awaited:
        parameters(request)
        return self._asked(request, ListJobs(self._kind), self._listed)

    def _listed(self, found: JobList) -> Response:
        return json_response(200, {self._kind: [_document(job) for job in found.jobs]})

    def _show(self, request: Request, segment: bytes) -> Awaited:
        job = segment.decode("latin-1")

        def shown(found: JobState | NoJob) -> Response:
            return self._unknown(job) if isinstance(found, NoJob) else json_response(200, _document(found))

        return self._asked(request, FindJob(self._kind, job), shown)

    def _end(self, request: Request, segment: bytes) -> Awaited:
        job = segment.decode("latin-1")

        def ended(found: JobState | NoJob) -> Response:
            return self._unknown(job) if isinstance(found, NoJob) else Response(204)

        return self._asked(request, EndJob(self._kind, job), ended)

    def _unknown(self, job: str) -> Response:
        return error_response(Fault.NO_JOB, f"{job}; GET {self._path} lists the {self._kind}")


def _document(job: JobState) -> dict[str, Any]:
    failed = {"error": job.error, "code": job.code} if job.code else {}
    return {"job": job.job, "state": job.state, **job.progress, **failed}


class Purges:
    def __init__(self, asked: Asked) -> None:
        self._jobs = JobRoutes("purges", "purges", asked)
        self.routes: Routes = {(b"v1/queues", 4): {b"DELETE": self._purge}, **self._jobs.routes}

    def _purge(self, request: Request, segment: bytes) -> Response | Awaited:
        parameters(request)
        if segment != b"messages":
            return not_found(request)
        return self._jobs.start(request, StartPurge(queue_name(segments_of(request.target)[2])))
