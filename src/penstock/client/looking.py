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


async def troubles(session: Session) -> list[Trouble]:
    """The queues that need a person, the most urgent first."""
    return (await session.get(f"/v1/stats{query(limit=1)}", _Figures)).attention


async def queue_names(session: Session, part: str, limit: int) -> list[str]:
    """Queues with this text in their names, in the order of names."""
    return [queue.name for queue in (await session.get(f"/v1/stats{query(name=part, limit=limit)}", _Figures)).queues]


async def consumers(session: Session, queue: str | None, name: str | None, sort: str) -> list[ConsumerState]:
    """Who takes messages. The broker counts while somebody asks."""
    target = f"/v1/consumers{query(queue=queue, name=name, sort=sort, limit=PAGE_MAX)}"
    return (await session.get(target, _Consumers)).consumers
