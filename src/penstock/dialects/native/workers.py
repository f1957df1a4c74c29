"""Workers in the native API: what each one reports every few seconds. `docs/tasks.md` has it in prose."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Struct

from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire import http
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
    def report(self, name: str, report: Report) -> None: ...

    def remove(self, name: str) -> bool:
        """Returns whether it was known."""

    def queues_of(self, name: str) -> list[str]: ...

    def list(self, access: Access) -> list[dict[str, Any]]:
        """Those that work for a queue that the client sees, the one that was heard longest ago first."""


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
        queues = [
            http.checked_text(queue, "a queue name") for queue in (*report.queues, *self._keeper.queues_of(name))
        ]
        http.require(request.access, *[((Verb.CONSUME,), queue) for queue in queues])
        self._keeper.report(name, report)
        return http.Response(204)

    def _remove(self, request: http.Request, segment: bytes) -> http.Response:
        name = _name(segment)
        http.require(request.access, *[((Verb.CONSUME,), queue) for queue in self._keeper.queues_of(name)])
        return http.Response(204) if self._keeper.remove(name) else http.error_response(Fault.NO_WORKER, name)


def _name(segment: bytes) -> str:
    return http.queue_name(segment, "a worker name")
