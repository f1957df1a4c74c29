"""What an operator looks at: health, queues that need a person, consumers, names, and figures."""

from __future__ import annotations

from msgspec import Struct

from penstock.client.encoding import query
from penstock.client.results import ConsumerState, Health, Trouble
from penstock.client.session import Session
from penstock.client.transport import Request
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

    async def health(self) -> Health:
        """Whether the broker is well.

        `client.health().color`
        """
        request = Request("GET", "/health")
        reply = await self._session.transport.ask(request, self._session.timeout)
        if reply.answer.status not in (200, 503):
            raise self._session.refused(request, reply)
        color, _, reason = reply.answer.body.decode("utf-8", "replace").partition(": ")
        return Health(color, reason)

    async def metrics(self) -> str:
        """The broker's figures in the text format of Prometheus."""
        return (await self._session.ask(Request("GET", "/metrics"))).answer.body.decode()
