"""An engine with a log in memory and a clock that is turned by hand, worked as `server.loop` works them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.engine.engine import Engine
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Delivery, QueueDescription, Receipt
from penstock.model.commands import (
    Command,
    CreateQueue,
    DescribeQueue,
    Fetch,
    Finish,
    NewMessage,
    Publish,
    Release,
    Tick,
)
from penstock.model.events import Event
from penstock.model.schedules import RunDue
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Nanos
from penstock.storage.memory import MemoryLog

START_NS = 1_000 * SECOND_NS


class Rig:
    def __init__(self) -> None:
        self.engine = Engine()
        self.log = MemoryLog()
        self.clock: Nanos = START_NS
        self.ahead: Nanos = 0  # Of the clock of the machine.
        self.events: list[Event] = []

    # Commands

    def do(self, command: Command) -> Answer:
        if self.next_due <= self.now():
            self.settle()
        decision = self.engine.decide(command, self.now(), self.wall())
        self._apply(decision.events)
        if isinstance(decision.answer, list):
            for each in decision.answer:
                if isinstance(each, Delivery):
                    self._load(each)
        return decision.answer

    def settle(self) -> None:
        now = self.now()
        self._apply(self.engine.decide(Tick(), now=now).events)
        while self.engine.schedules.next_due <= self.wall():
            self._apply(self.engine.decide(RunDue(), self.now(), self.wall()).events)
        self.engine.advance(now)

    @property
    def next_due(self) -> Nanos:
        """When time alone does something next."""
        return min(self.engine.next_deadline, self.engine.schedules.next_due + self.ahead)

    def now(self) -> Nanos:
        return max(self.clock, self.engine.time + 1)

    def wall(self) -> Nanos:
        return self.now() - self.ahead

    def wait(self, seconds: float) -> None:
        """Let time pass, and let happen what only time brings about."""
        self.clock = self.now() + round(seconds * SECOND_NS)
        while self.next_due <= self.clock:
            self.settle()

    def _apply(self, events: Sequence[Event]) -> None:
        for event in events:
            self.engine.evolve(event, self.log.append(event))
            self.events.append(event)

    def _load(self, delivery: Delivery) -> None:
        sizes = delivery.body_bytes, delivery.key_bytes, delivery.headers_bytes
        extent = self.log.read(delivery.position, sum(sizes))
        delivery.body = extent[: sizes[0]]
        delivery.key = extent[sizes[0] : sizes[0] + sizes[1]]
        delivery.headers = extent[sizes[0] + sizes[1] :]

    # In fewer words

    def create(self, name: str, **settings: Any) -> QueueDescription:
        answer = self.do(CreateQueue(name, QueueSettings(**settings)))
        assert isinstance(answer, QueueDescription), answer
        return answer

    def with_dead_letters(self, *, max_receives: int = 1, **settings: Any) -> None:
        """A queue `work` whose dead letters go to `dead`."""
        self.create("dead")
        self.create("work", redrive_policy=RedrivePolicy(max_receives, "dead"), **settings)

    def publish(self, queue: str, *messages: bytes | NewMessage) -> list[Receipt]:
        new = [NewMessage(each) if isinstance(each, bytes) else each for each in messages]
        answer = self.do(Publish(queue, new))
        assert isinstance(answer, list), answer
        return [each for each in answer if isinstance(each, Receipt)]

    def fetch(self, queue: str, count: int = 1, **options: Any) -> list[Delivery]:
        answer = self.do(Fetch(queue, count, **options))
        assert isinstance(answer, list | tuple), answer
        return [each for each in answer if isinstance(each, Delivery)]

    def bodies(self, queue: str, count: int = 100, **options: Any) -> list[bytes]:
        return [delivery.body for delivery in self.fetch(queue, count, **options)]

    def finish(self, message: Receipt | Delivery, **options: Any) -> Answer:
        return self.do(Finish(message.queue, message.sequence, **options))

    def release(self, message: Receipt | Delivery, **options: Any) -> Answer:
        return self.do(Release(message.queue, message.sequence, **options))

    def describe(self, name: str) -> QueueDescription:
        answer = self.do(DescribeQueue(name))
        assert isinstance(answer, QueueDescription), answer
        return answer

    def counts(self, name: str) -> tuple[int, int, int]:
        """Ready, leased, delayed."""
        seen = self.describe(name)
        assert seen.messages == seen.ready + seen.leased + seen.delayed
        return seen.ready, seen.leased, seen.delayed

    # After a crash

    def replayed(self) -> Engine:
        """A new engine from the log alone, as late as this one."""
        if self.log.collecting:
            self.log.commit(self.now(), lambda _: None)
        return self._late(Engine(), MemoryLog(self.log.durable))

    def take_snapshot(self) -> None:
        self.log.write_snapshot(self.engine.sections(), self.log.appended, self.clock)
        self.log.publish_snapshot(self.log.appended.offset)

    def restored(self) -> Engine:
        """A new engine from a snapshot alone, as late as this one."""
        engine = Engine()
        engine.restore(copied_sections(self.engine))
        return self._late(engine, MemoryLog())

    def _late(self, engine: Engine, log: MemoryLog) -> Engine:
        for event, position in log.recover().events:
            engine.evolve(event, position)
        self.engine.advance(self.clock)
        engine.advance(self.clock)
        return engine


def copied_sections(engine: Engine) -> list[tuple[str, bytes, tuple[Any, ...]]]:
    """As a file gives them back: columns are bytes."""
    return [
        (kind, facts, tuple(np.frombuffer(column.tobytes(), dtype=np.uint8) for column in columns))
        for kind, facts, columns in engine.sections()
    ]


def state_of(engine: Engine) -> list[tuple[str, bytes, tuple[bytes, ...]]]:
    """The whole state, byte for byte."""
    return [
        (kind, facts, tuple(column.tobytes() for column in columns)) for kind, facts, columns in engine.sections()
    ]
