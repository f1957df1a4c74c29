"""All consumers and how fast they are. They are counted while somebody asks, and for some seconds longer."""

from __future__ import annotations

import asyncio

from penstock.broker.figures.paces import WINDOW_SECONDS
from penstock.broker.services.connections import waiting_consumers
from penstock.broker.services.contract import Service
from penstock.broker.writer.port import ServicePort
from penstock.limits import SECOND_NS, STATS_QUEUES_PER_TURN
from penstock.model.access import Access
from penstock.model.client import Client
from penstock.model.consumers import Consumer, ConsumerList, ListConsumers
from penstock.model.values import Nanos

COUNTED_SECONDS = 60.0
"""So long after the last question."""
CONSUMERS_MAX = 10_000
"""More are not collected for one answer."""


class ConsumersService(Service):
    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        self._asked: Nanos = 0

    async def consumers(self, client: Client, query: ListConsumers) -> ConsumerList:
        now = self._asked = self.writer.now()
        self.writer.tally.pace_all(now)
        self.wake()
        wanted = [each for each in await self._all(query, client.access, now) if query.wants(each)]
        counted = (now - self.writer.tally.paced_since) / SECOND_NS
        return ConsumerList(
            len(wanted),
            query.sorted(wanted)[query.offset : query.offset + query.limit],
            round(now / SECOND_NS, 3),
            round(min(counted, WINDOW_SECONDS), 1),
        )

    async def _all(self, query: ListConsumers, access: Access, now: Nanos) -> list[Consumer]:
        engine, tally = self.writer.engine, self.writer.tally
        texts, waiting = engine.names.texts, waiting_consumers(self.writer)
        found: list[Consumer] = []
        queues = list(engine.queues.values())
        for start in range(0, len(queues), STATS_QUEUES_PER_TURN):
            for queue in queues[start : start + STATS_QUEUES_PER_TURN]:
                is_meant = query.queues is None or queue.name in query.queues
                is_busy = queue.leases.live or queue.name in waiting or tally.paces.has(queue.number)
                if is_meant and is_busy and (access.sees_all or access.sees(queue.name)):
                    found += tally.consumers(queue, now, lambda number: texts.get(number, ""), waiting)
            await asyncio.sleep(0)
        return found[:CONSUMERS_MAX]

    async def run(self) -> None:
        """Stop counting when nobody has asked for a while."""
        while True:
            await self.rest(COUNTED_SECONDS)
            if self._asked and self.writer.now() - self._asked > COUNTED_SECONDS * SECOND_NS:
                self._asked = 0
                self.writer.tally.end_pacing()
