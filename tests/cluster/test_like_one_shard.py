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

from penstock.broker.shard_map import ShardMap
from penstock.cluster.links.mesh import Mesh, owner_of
from penstock.cluster.links.wires import UnixWires
from penstock.cluster.routing.router import Router
from penstock.model.commands import Command, CreateQueue
from tests.support.effort import effort
from tests.support.live_loop import ask, shard_loop, until
from tests.support.store_stories import LONG, NAMES, commands, plain

SHARDS, WORKERS = 4, 2


class Sharded:
    """A store with four shards; its two workers are used in turn."""

    async def start(self, folder: Path) -> None:
        loops = {shard: shard_loop(shard, SHARDS) for shard in range(SHARDS)}
        own = [
            {shard: loops[shard] for shard in loops if owner_of(shard, WORKERS) == each} for each in range(WORKERS)
        ]
        self.meshes = [Mesh(each, WORKERS, SHARDS, UnixWires(folder), own[each]) for each in range(WORKERS)]
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
