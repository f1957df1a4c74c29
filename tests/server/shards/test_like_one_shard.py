"""A store with several shards over two workers answers as one with a single shard does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.answers import Delivery, Drawn, Pulled, QueueDescription, QueueList
from penstock.model.commands import (
    Command,
    CreateQueue,
    DescribeQueue,
    Draw,
    Fetch,
    Finish,
    FinishMany,
    ListQueues,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishTopics,
    Pull,
    Purge,
    Settle,
    SettleMany,
)
from penstock.model.settings import QueueSettings
from penstock.server.shards.mesh import Mesh, owner_of
from penstock.server.shards.router import Router
from penstock.server.shards.shard_map import ShardMap
from tests.support.effort import effort
from tests.support.live_loop import ask, shard_loop, until

SHARDS, WORKERS = 4, 2
DEFAULTS = QueueSettings()
LONG = QueueSettings(keep="all")
# Created in this order, their numbers are the same with one shard and with four.
NAMES = {"a": 0, "b": 1, "c": 2, "d": 3, "e": 0}

names = st.sampled_from([*NAMES, "none"])
bodies = st.lists(st.sampled_from([b"one", b"two"]), min_size=1, max_size=2)
messages = bodies.map(lambda some: [NewMessage(body) for body in some])
topics = st.lists(st.sampled_from(list(NAMES)), min_size=1, max_size=1).map(tuple)
about = st.lists(st.builds(NewMessage, st.just(b"x"), topics=topics), min_size=1, max_size=4)
numbers, sequences = st.integers(1, 6), st.integers(1, 4)
finishes = st.lists(st.builds(Finish, numbers, sequences), min_size=1, max_size=4)
settles = st.lists(st.builds(Settle, numbers, sequences), min_size=1, max_size=4)
publishes = st.builds(Publish, names, messages)
draws = st.lists(names.filter(lambda name: name != "none"), min_size=1, max_size=4, unique=True)
results = st.lists(st.tuples(st.sampled_from(list(NAMES)), sequences, st.just(b"done")), max_size=2)


def keyed(publish: PublishTopics) -> PublishOnce:
    """Equal requests have the same key."""
    digest = repr(publish).encode()
    return PublishOnce(publish, digest, digest, 1 << 60, 1000)


commands = st.one_of(
    publishes,
    publishes,
    st.builds(Fetch, names, st.integers(1, 3)),
    st.builds(Finish, numbers, sequences),
    st.builds(FinishMany, finishes),
    st.builds(SettleMany, settles),
    st.builds(PublishTopics, about, st.just(DEFAULTS)),
    st.builds(PublishTopics, about, st.just(DEFAULTS)).map(keyed),
    st.builds(PublishInTurn, st.lists(publishes, min_size=1, max_size=4)),
    st.builds(
        Pull, st.sampled_from(["me", "you"]), draws.map(lambda some: [Draw(name, most=2) for name in some]), results
    ),
    st.builds(DescribeQueue, names),
    st.builds(ListQueues, st.integers(0, 3), st.integers(0, 6) | st.none()),
    st.builds(Purge, names),
)


def plain(answer: Any) -> Any:
    """An answer without times and positions in the log."""
    if isinstance(answer, list | tuple):
        return [plain(each) for each in answer]
    if isinstance(answer, Delivery):
        return answer.queue, answer.sequence, answer.body, answer.receives
    if isinstance(answer, Pulled):
        return plain(answer.drawn), sorted(answer.wrong, key=repr), {} if answer.wrong else answer.last
    if isinstance(answer, Drawn):
        return answer.queue, answer.sequences, answer.bodies
    if isinstance(answer, QueueList):
        return answer.total, plain(answer.queues)
    if isinstance(answer, QueueDescription):
        counts = (answer.messages, answer.ready, answer.leased, answer.kept, answer.last_sequence)
        return answer.name, answer.number, *counts
    return answer


class Sharded:
    """A store with four shards; its two workers are used in turn."""

    async def start(self, folder: Path) -> None:
        loops = {shard: shard_loop(shard, SHARDS) for shard in range(SHARDS)}
        own = [
            {shard: loops[shard] for shard in loops if owner_of(shard, WORKERS) == each} for each in range(WORKERS)
        ]
        self.meshes = [Mesh(each, WORKERS, SHARDS, folder, own[each]) for each in range(WORKERS)]
        for mesh in self.meshes:
            await mesh.start()
        await until(lambda: all(mesh.is_complete for mesh in self.meshes))
        self._routers = self._in_turn()

    def _in_turn(self) -> Iterator[Router]:
        routers = [Router(ShardMap(SHARDS, NAMES), mesh.ports) for mesh in self.meshes]
        while True:
            yield from routers

    async def ask(self, command: Command) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        next(self._routers).submit(command, answered.set_result)
        return await answered


async def compare(story: list[Command], folder: Path) -> None:
    alone, sharded = shard_loop(0, 1), Sharded()
    await sharded.start(folder)
    try:
        for command in [*(CreateQueue(name, LONG) for name in NAMES), *story]:
            assert plain(await sharded.ask(command)) == plain(await ask(alone, command)), command
    finally:
        for mesh in sharded.meshes:
            mesh.stop()
        await asyncio.sleep(0)


@effort(30)
@given(st.lists(commands, min_size=5, max_size=25))
def test_four_shards_answer_as_one_does(story: list[Command]) -> None:
    with TemporaryDirectory() as folder:
        uvloop.run(compare(story, Path(folder)))
