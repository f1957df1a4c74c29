"""Which workers there are, and when each was heard last. In memory only: a worker reports again after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from penstock.dialects.native.workers import Report
from penstock.limits import SECOND_NS
from penstock.model.access import Access
from penstock.model.values import Nanos
from penstock.server.measures import Samples
from penstock.server.services.contract import Service
from penstock.server.writer.port import ServicePort

WORKERS_MAX = 1000
"""If there are more, the one that was heard longest ago is forgotten first."""
MISSED_MAX = 3
"""A worker that has missed so many reports is missing."""
FORGOTTEN_SECONDS = 86_400


class _Heard(NamedTuple):
    report: Report
    since: Nanos
    last: Nanos

    def is_missing(self, now: Nanos) -> bool:
        return now - self.last > MISSED_MAX * self.report.seconds * SECOND_NS


class WorkerReports(Service):
    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        self._heard: dict[str, _Heard] = {}  # The one that was heard longest ago comes first.

    def report(self, name: str, report: Report) -> None:
        now, known = self.writer.now(), self._heard.pop(name, None)
        self._heard[name] = _Heard(report, known.since if known else now, now)
        oldest = next(iter(self._heard))
        if len(self._heard) > WORKERS_MAX or now - self._heard[oldest].last > FORGOTTEN_SECONDS * SECOND_NS:
            del self._heard[oldest]

    def remove(self, name: str) -> bool:
        return self._heard.pop(name, None) is not None

    def queues_of(self, name: str) -> list[str]:
        heard = self._heard.get(name)
        return heard.report.queues if heard else []

    def list(self, access: Access) -> list[dict[str, Any]]:
        now = self.writer.now()
        return [
            {
                "name": name,
                "queues": seen,
                "concurrency": heard.report.concurrency,
                "running": heard.report.running,
                "since": heard.since // 1_000_000 / 1000,
                "heard": heard.last // 1_000_000 / 1000,
                "missing": heard.is_missing(now),
            }
            for name, heard in self._heard.items()
            if (seen := [queue for queue in heard.report.queues if access.sees(queue)])
        ]

    def state(self) -> Iterable[tuple[str, Samples]]:
        now = self.writer.now()
        missing = sum(heard.is_missing(now) for heard in self._heard.values())
        yield "penstock_workers", [(("working",), len(self._heard) - missing), (("missing",), missing)]
