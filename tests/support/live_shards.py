"""Several shards with couriers in the test's own event loop, each with a log of its own; any of them can crash."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

from penstock.broker.services.courier_source import CourierSource
from penstock.broker.services.courier_target import CourierTarget
from penstock.broker.services.loans import connect_loans
from penstock.broker.services.loans.borrower import Borrower
from penstock.broker.services.loans.lender import Lender
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.message_traces import MessageTraces
from penstock.broker.services.recalls import Recalls
from penstock.broker.shard_map import ShardMap, answers_for
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.port import Reply
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.cluster.routing.ports import OwnPort
from penstock.engine.engine import Engine
from penstock.engine.history import MemoryHistory, SharedHistory
from penstock.errors import Reason
from penstock.model.answers import Refused
from penstock.model.commands import Command, CreateQueue, NewMessage, PublishTopics
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import ask

NEW_QUEUE = QueueSettings()
_GONE = Refused(Reason.UNAVAILABLE, "it has crashed")


class LiveShard:
    """From a start to a crash."""

    def __init__(self, shard: int, shards: ShardMap, log: MemoryLog) -> None:
        self._number, self._shards = shard, shards
        engine = self._recovered(log)
        self.log = log
        self.loop = Loop(engine, log, time.time_ns, AsyncioScheduler(asyncio.get_running_loop()))
        self.reads = LogReads(self.loop)
        self.courier_source = CourierSource(self.loop, self.reads)
        self.courier = CourierTarget(self.loop, NEW_QUEUE)
        self.courier_source.connect(shard, shards)
        self.borrower, self.lender = Borrower(self.loop), Lender(self.loop)
        recalls = Recalls(self.loop, MessageTraces(self.loop, self.reads))
        self.port = OwnPort(self.loop, self.courier_source, recalls, self.borrower, self.lender)

    def _recovered(self, log: MemoryLog) -> Engine:
        facts = (self._number, self._shards.shards)
        history = SharedHistory(MemoryHistory(), answers_for(*facts))
        engine = Engine(history, shard=facts[0], shards=facts[1], home=self._shards.of_name)
        sections, events = log.recover()
        if sections is not None:
            engine.restore(sections)
        for event, position in events:
            engine.evolve(event, position)
        return engine

    def start(self) -> None:
        self.courier_source.start()
        self.courier.start()
        self.borrower.start()
        self.lender.start()

    def revive(self) -> None:
        """Go on with what is durable after the log has failed, in the same process."""
        self.log = MemoryLog(list(self.log.durable), self.log.snapshot)
        self.loop.revive(self._recovered(self.log), self.log)
        self.start()

    async def end(self) -> None:
        await self.lender.close()
        await self.borrower.close()
        await self.courier.close()
        await self.courier_source.close()
        await self.reads.close()


class _Link:
    """The way to a shard, which loses everything that is under way when the shard crashes."""

    def __init__(self) -> None:
        self.shard: LiveShard | None = None
        self._unanswered: dict[int, Reply] = {}
        self._last = 0

    def submit(self, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Any:
        if self.shard is None:
            asyncio.get_running_loop().call_soon(reply, _GONE)
            return None
        self._last = number = self._last + 1
        self._unanswered[number] = reply

        def answered(answer: Any) -> None:
            if waiting := self._unanswered.pop(number, None):
                waiting(answer)

        return self.shard.port.submit(command, answered, stage)

    def lose(self) -> None:
        unanswered, self._unanswered = self._unanswered, {}
        for reply in unanswered.values():
            reply(_GONE)


class LiveShards:
    def __init__(self, shards: int, elsewhere: dict[str, int] | None = None) -> None:
        self.map = ShardMap(shards, elsewhere)
        self._links = [_Link() for _ in range(shards)]
        self.shards: list[LiveShard] = []
        for shard in range(shards):
            self.shards.append(self._started(shard, MemoryLog()))

    def _started(self, shard: int, log: MemoryLog) -> LiveShard:
        started = LiveShard(shard, self.map, log)
        sources: Any = {source: link for source, link in enumerate(self._links) if source != shard}
        started.courier.connect(sources)
        facts: Any = (shard, self.map, self._links)
        connect_loans(started.borrower, started.lender, started.courier, *facts)
        self._links[shard].shard = started
        started.start()
        return started

    async def crash(self, shard: int) -> None:
        """Lose what is not durable, and start again."""
        victim, link = self.shards[shard], self._links[shard]
        link.shard = None
        link.lose()
        durable = list(victim.log.durable)
        await victim.end()
        self.shards[shard] = self._started(shard, MemoryLog(durable, victim.log.snapshot))

    def of(self, queue: str) -> LiveShard:
        return self.shards[self.map.of_name(queue)]

    async def ask(self, queue: str, command: Command) -> Any:
        return await ask(self.of(queue).loop, command)

    async def create(self, name: str, **settings: Any) -> None:
        answer = await self.ask(name, CreateQueue(name, QueueSettings(**settings)))
        assert not isinstance(answer, Refused), answer

    async def publish(self, *messages: NewMessage) -> Any:
        root = messages[0].topics[0].partition(".")[0]
        return await self.ask(root, PublishTopics(messages, NEW_QUEUE))

    def bodies(self, name: str) -> Counter[bytes]:
        shard = self.of(name)
        queue = shard.loop.engine.queue(name)
        if queue is None:
            return Counter()
        rows = [row for each in range(1, queue.last_sequence + 1) if (row := queue.rows.get(each))]
        return Counter(shard.log.read(row.position, row.body_bytes) for row in rows)

    async def end(self) -> None:
        for shard in self.shards:
            await shard.end()
