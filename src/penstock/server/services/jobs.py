"""Work that goes on in the broker for as long as it takes, and can be asked about: redrives and purges.

A job belongs to the broker, not to the client that asked for it. It ends with the broker and is not taken up again;
every step of it was one of the log, so what it has done stays done.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, Protocol

from penstock.dialects.wire.http import Response, Stream, error_response, json_response
from penstock.errors import Fault
from penstock.limits import JOB_ANSWER_SECONDS, JOBS_MAX, JOBS_REMEMBERED_MAX
from penstock.model.answers import Refused
from penstock.server.services.search import failed

Respond = Callable[[Response | Stream], None]


class Work(Protocol):
    """What a job does, step by step."""

    def step(self) -> None:
        """Do a little, then call `Job.go_on`, or `Job.end`."""

    def document(self) -> dict[str, Any]:
        """How far it has come."""

    def ended(self, state: str) -> None:
        """It is over: for a line in the log of the broker."""


class Job:
    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.state = "running"
        self.work: Work
        self.when_over: Callable[[], None]
        self._failure: Refused | BaseException | None = None

    @property
    def is_running(self) -> bool:
        return self.state == "running"

    def go_on(self) -> None:
        if self.is_running:
            self.work.step()

    def end(self, state: str = "done") -> None:
        if self.is_running:
            self.state = state
            self.work.ended(state)
            self.when_over()

    def fail(self, failure: Refused | BaseException) -> None:
        self._failure = failure
        self.end("failed")

    def document(self) -> dict[str, Any]:
        document = {"job": self.id, "state": self.state, **self.work.document()}
        failure = self._failure
        if failure is not None:
            code = failure.reason if isinstance(failure, Refused) else Fault.UNREADABLE
            text = failure.sentence if isinstance(failure, Refused) else str(failure)
            document |= {"error": text, "code": code.code}
        return document

    def response(self, path: str) -> Response:
        """For the client that waits for it."""
        if self._failure is not None:
            return failed(self._failure)
        if self.is_running:
            return json_response(202, self.document(), f"Location: {path}/{self.id}\r\n".encode())
        return json_response(200, self.document())


class Jobs:
    """All jobs of one kind: those under way, and the last that are over."""

    def __init__(self, path: str, plural: str) -> None:
        self._path = path
        self._plural = plural
        self._jobs: dict[str, Job] = {}  # The newest last.

    def refusal(self) -> Response | None:
        if sum(job.is_running for job in self._jobs.values()) < JOBS_MAX:
            return None
        return error_response(Fault.JOB_LIMIT, f"{JOBS_MAX} {self._plural}")

    def start(self, job: Job, respond: Respond) -> None:
        """Answered once: when it is over, or when that takes long."""
        waiting = True

        def answer() -> None:
            nonlocal waiting
            if waiting:
                waiting = False
                timer.cancel()
                respond(job.response(self._path))

        job.when_over = answer
        timer = asyncio.get_running_loop().call_later(JOB_ANSWER_SECONDS, answer)
        self._jobs[job.id] = job
        over = [name for name, each in self._jobs.items() if not each.is_running]
        for name in over[: max(0, len(over) - JOBS_REMEMBERED_MAX)]:
            del self._jobs[name]
        job.go_on()

    def show(self, job: str) -> Response:
        found = self._jobs.get(job)
        return json_response(200, found.document()) if found else self._unknown(job)

    def all(self) -> Response:
        return json_response(200, {self._plural: [job.document() for job in self._jobs.values()]})

    def stop(self, job: str) -> Response:
        found = self._jobs.get(job)
        if found is None:
            return self._unknown(job)
        found.end("stopped")
        return Response(204)

    def _unknown(self, job: str) -> Response:
        return error_response(Fault.NO_JOB, f"{job}; GET {self._path} lists the {self._plural}")
