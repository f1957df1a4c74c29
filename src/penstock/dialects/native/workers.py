"""Workers in the native API: what each one reports every few seconds. `docs/tasks.md` has it in prose."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire import http
from penstock.dialects.wire.subjects import Subject, names_in
from penstock.errors import Fault
from penstock.limits import INT32_MAX
from penstock.model.access import Access, Verb

_QUEUES_MAX = 100
_Count = Annotated[int, Meta(ge=0, le=INT32_MAX)]


class Report(Struct, forbid_unknown_fields=True, frozen=True):
    """What a worker says about itself."""

    queues: Annotated[list[str], Meta(min_length=1, max_length=_QUEUES_MAX)]
    concurrency: _Count  # Jobs at a time.
    running: _Count
    seconds: Annotated[float, Meta(gt=0, le=3600)]  # When it will report again.


class WorkersKeeper(Protocol):
    """Names of workers are chosen by clients that do not know of each other: one name may be that of several."""

    def report(self, name: str, report: Report, access: Access) -> None: ...

    def remove(self, name: str, access: Access) -> bool:
        """Remove those that the client may consume for. Returns whether it sees one of this name."""

    def list(self, access: Access) -> list[dict[str, Any]]:
        """Those that work for a queue that the client sees, the one that was heard longest ago first."""


class _Working(Struct):
    queues: list[str]


def worked_for(request: http.Request) -> Subject:
    """The queues of a report that is wrong in something else."""
    named = names_in(request, _Working)
    return tuple([((Verb.CONSUME,), queue) for queue in named.queues]) if named else None


_decode = msgspec.json.Decoder(Report).decode


class Workers:
    def __init__(self, keeper: WorkersKeeper) -> None:
        self._keeper = keeper
        self.routes: http.Routes = {
            (b"v1/workers", 2): {b"GET": self._list, b"HEAD": self._list},
            (b"v1/workers", 3): {b"PUT": self._put, b"DELETE": self._remove},
        }

    def _list(self, request: http.Request, _: bytes) -> http.Response:
        parameters(request)
        document = {"workers": self._keeper.list(request.access)}
        return http.json_response(200, document, b"Cache-Control: no-store\r\n")

    def _put(self, request: http.Request, segment: bytes) -> http.Response:
        name, report = _name(segment), http.decoded(_decode, request.body)
        queues = [http.checked_text(queue, "a queue name") for queue in report.queues]
        http.require(request.access, *[((Verb.CONSUME,), queue) for queue in queues])
        self._keeper.report(name, report, request.access)
        return http.Response(204)

    def _remove(self, request: http.Request, segment: bytes) -> http.Response:
        """It is like an id: only who sees it hears that there is one."""
        name = _name(segment)
        removed = self._keeper.remove(name, request.access)
        return http.Response(204) if removed else http.error_response(Fault.NO_WORKER, name)


def _name(segment: bytes) -> str:
    return http.queue_name(segment, "a worker name")
