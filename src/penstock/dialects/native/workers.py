"""Workers in the native API: what each one reports every few seconds. `docs/tasks.md` has it in prose."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire import http
from penstock.dialects.wire.subjects import Subject, names_in
from penstock.errors import Fault
from penstock.model.access import Verb
from penstock.model.workers import ListWorkers, Noted, NoteWorker, RemoveWorker, Report, WorkerList


class _Working(Struct):
    queues: list[str]


def worked_for(request: http.Request) -> Subject:
    """The queues of a report that is wrong in something else."""
    named = names_in(request, _Working)
    return tuple([((Verb.CONSUME,), queue) for queue in named.queues]) if named else None


_decode = msgspec.json.Decoder(Report).decode


class Workers:
    def __init__(self, asked: http.Asked) -> None:
        self._asked = asked
        self.routes: http.Routes = {
            (b"v1/workers", 2): {b"GET": self._list, b"HEAD": self._list},
            (b"v1/workers", 3): {b"PUT": self._put, b"DELETE": self._remove},
        }

    def _list(self, request: http.Request, _: bytes) -> http.Awaited:
        parameters(request)
        return self._asked(request, ListWorkers(), _listed)

    def _put(self, request: http.Request, segment: bytes) -> http.Awaited:
        name, report = _name(segment), http.decoded(_decode, request.body)
        for queue in report.queues:
            http.checked_text(queue, "a queue name")
        return self._asked(request, NoteWorker(name, report), lambda _: http.Response(204))

    def _remove(self, request: http.Request, segment: bytes) -> http.Awaited:
        """It is like an id: only who sees it hears that there is one."""
        name = _name(segment)

        def removed(answer: Noted) -> http.Response:
            return http.Response(204) if answer.is_known else http.error_response(Fault.NO_WORKER, name)

        return self._asked(request, RemoveWorker(name), removed)


def _listed(found: WorkerList) -> http.Response:
    return http.json_response(200, {"workers": found.workers}, b"Cache-Control: no-store\r\n")


def _name(segment: bytes) -> str:
    return http.queue_name(segment, "a worker name")
