"""What an operator looks at: queues that need a person, consumers, and names."""

from __future__ import annotations

from msgspec import Struct

from penstock.client.encoding import query
from penstock.client.results import ConsumerState, Trouble
from penstock.client.session import Session
from penstock.limits import PAGE_MAX


class _Named(Struct):
    name: str


class _Figures(Struct):
    attention: list[Trouble]
    queues: list[_Named]


class _Consumers(Struct):
    consumers: list[ConsumerState]


class Looks:
    """What a client has for those who watch."""

    _session: Session

    async def troubles(self) -> list[Trouble]:
        """The queues that need a person, the most urgent first, and why.

        `for trouble in client.troubles(): print(trouble.queue, trouble.text)`
        """
        return (await self._session.get(f"/v1/stats{query(limit=1)}", _Figures)).attention

    async def consumers(
        self, queue: str | None = None, *, name: str | None = None, sort: str = "time"
    ) -> list[ConsumerState]:
        """Who takes messages, of all queues or of one, and how fast; the slowest first. The broker counts while
        somebody asks.

        `client.consumers("orders")[0].leases`
        """
        target = f"/v1/consumers{query(queue=queue, name=name, sort=sort, limit=PAGE_MAX)}"
        return (await self._session.get(target, _Consumers)).consumers

    async def queue_names(self, part: str = "", limit: int = 100) -> list[str]:
        """The names of queues that contain this text, in their order.

        `client.queue_names("failed")`
        """
        found = await self._session.get(f"/v1/stats{query(name=part, limit=limit)}", _Figures)
        return [queue.name for queue in found.queues]
