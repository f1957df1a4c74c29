"""A live loop in the test's own event loop, and how to ask it something."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.broker.room import Room
from penstock.broker.services.history_writes import HistoryWrites
from penstock.broker.services.snapshots import Snapshots
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.scheduler import AsyncioScheduler
from penstock.config.config import LogConfig
from penstock.engine.engine import Engine
from penstock.model.answers import Answer
from penstock.model.commands import Command, CreateQueue, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos, Stage, Version
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.log.segments import SegmentLog
from penstock.storage.memory import MemoryLog
from penstock.storage.port import Progress


async def ask(loop: Loop, command: Command) -> Any:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    loop.submit(command, answered.set_result)
    return await answered


def a_loop(log: SegmentLog | MemoryLog, room: Room | None = None) -> Loop:
    return Loop(Engine(), log, time.time_ns, AsyncioScheduler(asyncio.get_running_loop()), room=room)


def shard_loop(shard: int, shards: int) -> Loop:
    """A loop, in memory, for one of several shards."""
    engine, scheduler = Engine(shard=shard, shards=shards), AsyncioScheduler(asyncio.get_running_loop())
    return Loop(engine, MemoryLog(), time.time_ns, scheduler)


Story = Callable[[Loop], Coroutine[Any, Any, None]]


def live_with(queue: str, settings: QueueSettings) -> Callable[[Story], Callable[[], None]]:
    """A decorator for tests of a loop, in memory and in real time, that has this queue."""

    def live(story: Story) -> Callable[[], None]:
        async def run() -> None:
            loop = a_loop(MemoryLog())
            await ask(loop, CreateQueue(queue, settings))
            await asyncio.wait_for(story(loop), 100)

        def test() -> None:
            asyncio.run(run())

        test.__name__ = story.__name__
        return test

    return live


live = live_with("work", QueueSettings())


async def settled(loop: Loop) -> None:
    """Until nothing waits for the disk."""
    while not loop.idle:  # noqa: ASYNC110 - A turn, not a time.
        await asyncio.sleep(0)
    await asyncio.sleep(0)


async def turn() -> None:
    """What is called soon, and what that calls soon."""
    for _ in range(4):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - What is awaited is another process; the test's timeout ends it.
        await asyncio.sleep(0.001)


class HeldLog(MemoryLog):
    """A log whose commits end when the test says so."""

    progress: Progress | None = None

    def commit(self, now: Nanos, progress: Progress) -> None:
        assert self.progress is None, "one commit at a time"
        self.progress = progress
        super().commit(now, lambda _: None)

    def end_commit(self, how: Stage | BaseException = Stage.SYNC) -> None:
        progress, self.progress = self.progress, None
        assert progress is not None, "nothing is being written"
        progress(how)


class Remembered:
    """A loop on a real log, with a history on the disk."""

    def __init__(self, log: SegmentLog) -> None:
        self.log = log
        self.history = ObjectHistory(log.directory.history)
        self.history.holds = log.holds
        scheduler = AsyncioScheduler(asyncio.get_running_loop())
        self.loop = Loop(Engine(self.history), log, time.time_ns, scheduler)
        self.history_writes = HistoryWrites(self.loop, self.history)
        self.snapshots = Snapshots(self.loop, LogConfig(snapshot_bytes=64 << 10), self.history_writes)
        self.history_writes.start()

    async def publish(self, *versions: tuple[int, bytes]) -> None:
        messages = [NewMessage(body, object="customer", key=b"%d" % key) for key, body in versions]
        await ask(self.loop, Publish("work", messages, QueueSettings()))

    def known(self, key: int) -> Version:
        version = self.history.get("customer", b"%d" % key)
        assert version is not None
        return version

    async def close(self) -> None:
        await self.snapshots.close()
        await self.history_writes.close()
