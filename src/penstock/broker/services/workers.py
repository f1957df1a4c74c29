"""Which workers there are, and when each was heard last. In memory only: a worker reports again after a restart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.broker.figures.measures import Samples
from penstock.broker.services.contract import Service
from penstock.broker.services.questions import Answers
from penstock.broker.writer.port import ServicePort
from penstock.limits import SECOND_NS
from penstock.model.access import EVERY_NAME, Access, Need, Verb
from penstock.model.client import Client
from penstock.model.permissions import require
from penstock.model.values import Nanos
from penstock.model.workers import ListWorkers, Noted, NoteWorker, RemoveWorker, Report, WorkerList, WorkerState

WORKERS_MAX = 1000
"""If there are more, the one that was heard longest ago is forgotten first."""
MISSED_MAX = 3
"""A worker that has missed so many reports is missing."""
FORGOTTEN_SECONDS = 86_400


class _Heard(NamedTuple):
    report: Report
    since: Nanos
    last: Nanos

    def seen(self, access: Access) -> list[str]:
        """Its queues that a client sees. Who sees none does not see the worker."""
        return [queue for queue in self.report.queues if access.sees(queue)]

    def missing_needs(self, access: Access) -> list[Need]:
        """What a client that sees the worker lacks to speak for it, without the name of a queue that it does not
        see."""
        lacking = [queue for queue in self.report.queues if not access.may(Verb.CONSUME, queue)]
        return [((Verb.CONSUME,), queue if access.sees(queue) else EVERY_NAME) for queue in lacking]

    def is_missing(self, now: Nanos) -> bool:
        return now - self.last > MISSED_MAX * self.report.seconds * SECOND_NS


class WorkerReports(Service):
    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        # By name and identity. The one that was heard longest ago comes first.
        self._heard: dict[tuple[str, str], _Heard] = {}
        self.answers: Answers = {
            ListWorkers: self.listed,
            NoteWorker: self.note,
            RemoveWorker: self.take_out,
        }

    def report(self, name: str, report: Report, access: Access) -> None:
        """It takes the place of one of the same name that the client may speak for."""
        now = self.writer.now()
        known = [self._heard.pop(key) for key in self._keys_of(name, access)]
        since = min([each.since for each in known], default=now)
        self._heard[name, access.identity] = _Heard(report, since, now)
        oldest = next(iter(self._heard))
        if len(self._heard) > WORKERS_MAX or now - self._heard[oldest].last > FORGOTTEN_SECONDS * SECOND_NS:
            del self._heard[oldest]

    def remove(self, name: str, access: Access) -> bool:
        keys = self._keys_of(name, access)
        for key in keys:
            del self._heard[key]
        seen = [heard for key, heard in self._heard.items() if key[0] == name and heard.seen(access)]
        if seen and not keys:
            require(access, *seen[0].missing_needs(access))
        return bool(keys)

    def _keys_of(self, name: str, access: Access) -> list[tuple[str, str]]:
        """Those of this name that the client may speak for."""
        found = [(key, heard) for key, heard in self._heard.items() if key[0] == name]
        return [key for key, heard in found if key[1] == access.identity or not heard.missing_needs(access)]

    def seen_by(self, access: Access) -> list[WorkerState]:
        now = self.writer.now()
        return [
            WorkerState(
                name,
                seen,
                heard.report.concurrency,
                heard.report.running,
                heard.since // 1_000_000 / 1000,
                heard.last // 1_000_000 / 1000,
                heard.is_missing(now),
            )
            for (name, _), heard in self._heard.items()
            if (seen := heard.seen(access))
        ]

    async def listed(self, client: Client, _: ListWorkers) -> WorkerList:
        return WorkerList(self.seen_by(client.access))

    async def note(self, client: Client, query: NoteWorker) -> Noted:
        require(client.access, *[((Verb.CONSUME,), queue) for queue in query.report.queues])
        self.report(query.name, query.report, client.access)
        return Noted(is_known=True)

    async def take_out(self, client: Client, query: RemoveWorker) -> Noted:
        return Noted(self.remove(query.name, client.access))

    def state(self) -> Iterable[tuple[str, Samples]]:
        now = self.writer.now()
        missing = sum(heard.is_missing(now) for heard in self._heard.values())
        yield "penstock_workers", [(("working",), len(self._heard) - missing), (("missing",), missing)]
