"""Purging a queue in the native API, and looking at purges that take long."""

from __future__ import annotations

from typing import Protocol

from penstock.dialects.native.parameters import parameters
from penstock.dialects.wire.http import (
    Awaited,
    Request,
    Response,
    Routes,
    not_found,
    queue_name,
    segments_of,
)


class Purging(Protocol):
    """What deletes the messages, for as long as it takes."""

    def begin(self, queue: str) -> Response | Awaited: ...
    def show(self, job: str) -> Response: ...
    def all(self) -> Response: ...
    def stop(self, job: str) -> Response: ...


class Purges:
    """Requests in, what is to be done out."""

    def __init__(self, purging: Purging) -> None:
        self._purging = purging
        self.routes: Routes = {
            (b"v1/queues", 4): {b"DELETE": self._purge},
            (b"v1/purges", 2): {b"GET": self._all, b"HEAD": self._all},
            (b"v1/purges", 3): {b"GET": self._show, b"HEAD": self._show, b"DELETE": self._stop},
        }

    def _purge(self, request: Request, segment: bytes) -> Response | Awaited:
        parameters(request)
        if segment != b"messages":
            return not_found(request)
        return self._purging.begin(queue_name(segments_of(request.target)[2]))

    def _all(self, request: Request, _: bytes) -> Response:
        parameters(request)
        return self._purging.all()

    def _show(self, _: Request, segment: bytes) -> Response:
        return self._purging.show(segment.decode("latin-1"))

    def _stop(self, _: Request, segment: bytes) -> Response:
        return self._purging.stop(segment.decode("latin-1"))
