"""Workers: what each one reports to the broker, for those who watch."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from penstock.client.encoding import path
from penstock.client.results import WorkerState
from penstock.client.session import Session
from penstock.client.transport import Request
from penstock.renamed import has_old_names


class _List(Struct):
    workers: list[WorkerState]


@has_old_names("client.workers.")
class AsyncWorkers:
    """`client.workers`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def report(
        self, name: str, queues: Sequence[str], *, concurrency: int, running: int, seconds: float
    ) -> None:
        """Tell the broker that a worker is there, and will report again after so many seconds. `penstock worker` does
        this by itself."""
        document = {"queues": queues, "concurrency": concurrency, "running": running, "seconds": seconds}
        await self._session.ask(Request("PUT", path("workers", name), msgspec.json.encode(document)))

    async def list(self) -> list[WorkerState]:
        """The workers that have reported in the last day, the one that was heard longest ago first."""
        return (await self._session.get("/v1/workers", _List)).workers

    async def delete(self, name: str) -> None:
        """Forget a worker that has stopped."""
        await self._session.delete(path("workers", name))
