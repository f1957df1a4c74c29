"""Several shards with logs in memory, and couriers between them that are worked by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from penstock.broker.services.parcels import Wanted, bytes_of, copy_of, moved
from penstock.broker.shard_map import ShardMap
from penstock.engine.engine import Engine
from penstock.model.answers import Answer, Discarded, OwedList, Parcels
from penstock.model.commands import Command, DescribeQueue, NewMessage, PublishTopics
from penstock.model.courier_commands import Admit, ListOwed, NoteTaken
from penstock.model.settings import QueueSettings
from penstock.model.values import Cursor
from penstock.storage.log.batch import HEADER_BYTES, read_header
from penstock.storage.log.routed import NewVersions, promised_in
from penstock.storage.memory import MemoryLog
from tests.support.engine_rig import Rig

NEW_QUEUE = QueueSettings()


class ShardRig(Rig):
    """One of several shards. What is not committed is lost in a crash."""

    def __init__(self, shard: int, shards: ShardMap) -> None:
        super().__init__()
        self.shard, self.shards = shard, shards
        self.engine = self._engine()

    def _engine(self) -> Engine:
        return Engine(shard=self.shard, shards=self.shards.shards, home=self.shards.of_name)

    def commit(self) -> None:
        if self.log.collecting:
            self.log.commit(self.now(), lambda _: None)

    def crash(self) -> None:
        """Lose what is not committed, and begin again with the rest."""
        self.log = MemoryLog(self.log.durable, self.log.snapshot)
        self.engine = self._engine()
        sections, events = self.log.recover()
        if sections is not None:
            self.engine.restore(sections)
        for event, position in events:
            self.engine.evolve(event, position)
        self.engine.advance(self.clock)

    # As a source

    def owes(self, shard: int, after: Cursor, patterns: list[str]) -> Parcels:
        """What is durable here and owed to another shard."""
        self.commit()
        self.do(NoteTaken(shard, after.serial))
        wanted = Wanted(shard, patterns, self.shards.of_name)
        parcels = []
        for data in self.log.durable:
            header = read_header(data)
            assert header is not None
            if header.end.offset > after.offset:
                for promised in promised_in(header, data[HEADER_BYTES:]):
                    if isinstance(promised, NewVersions):
                        continue
                    messages, options = promised
                    topics = self.engine.names.texts[messages[0].topics]
                    if wanted.wants(topics):
                        parcels += [copy_of(each, options, topics, self.engine.names.texts.get) for each in messages]
        owed = cast("OwedList", self.do(ListOwed(shard, after.serial, 1000))).messages
        parcels += [moved(each, self.log.read(each.position, bytes_of(each))) for each in owed]
        serial = owed[-1].serial if owed else after.serial
        return Parcels(Cursor(self.log.end.offset, serial), self.now(), parcels)

    # As a target

    def question(self, source: int) -> tuple[Cursor, list[str], int]:
        routing = self.engine.routing
        return self.engine.couriers.cursor(source), routing.patterns(), routing.changes

    def admit(self, source: int, asked: tuple[Cursor, list[str], int], answer: Parcels) -> Answer:
        at, _, changes = asked
        return self.do(Admit(source, at, answer.to, changes, answer.parcels, self.now() - answer.now, NEW_QUEUE))


class CourierRig:
    """All shards of a store."""

    def __init__(self, elsewhere: dict[str, int], shards: int = 3) -> None:
        """`elsewhere`: the shards of queues, by name."""
        self.map = ShardMap(shards, elsewhere)
        self.shards = [ShardRig(shard, self.map) for shard in range(shards)]

    def of(self, queue: str) -> ShardRig:
        return self.shards[self.map.of_name(queue)]

    def create(self, name: str, **settings: Any) -> None:
        self.of(name).create(name, **settings)

    def publish(self, *messages: NewMessage) -> None:
        for message in messages:
            self.of(message.topics[0].partition(".")[0]).do(PublishTopics([message], NEW_QUEUE))

    def do(self, queue: str, command: Command) -> Answer:
        return self.of(queue).do(command)

    def run(self, source: int, target: int) -> Answer:
        """One round of a courier."""
        asked = self.shards[target].question(source)
        answer = self.shards[source].owes(target, asked[0], asked[1])
        admitted = self.shards[target].admit(source, asked, answer)
        self.shards[target].commit()
        return admitted

    def run_all(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            for source in range(len(self.shards)):
                for target in range(len(self.shards)):
                    if source != target:
                        assert not isinstance(self.run(source, target), Discarded)

    def bodies(self, queue: str) -> Counter[bytes]:
        """What is in a queue, which is not changed."""
        rig = self.of(queue)
        found = rig.engine.queue(queue)
        if found is None:
            return Counter()
        rows = [row for each in range(1, found.last_sequence + 1) if (row := found.rows.get(each))]
        return Counter(rig.log.read(row.position, row.body_bytes) for row in rows)

    def has(self, queue: str) -> int:
        description: Any = self.of(queue).do(DescribeQueue(queue))
        return int(description.messages)
