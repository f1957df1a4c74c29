"""The links between all workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import uvloop

from penstock.errors import Reason
from penstock.model.answers import Receipt
from penstock.model.commands import Command, CreateQueue, NewMessage, Publish
from penstock.model.settings import QueueSettings
from penstock.server.shards.link import Link
from penstock.server.shards.mesh import Mesh, owner_of
from penstock.server.shards.router import Router
from penstock.server.shards.shard_map import ShardMap
from penstock.server.shards.wires import UnixWires
from penstock.server.writer.loop import Loop
from tests.support.live_loop import shard_loop, until

SHARDS, WORKERS = 5, 3
NAMES = {f"queue-{shard}": shard for shard in range(SHARDS)}


class Worker:
    def __init__(self, number: int, folder: Path, loops: dict[int, Loop]) -> None:
        self.number, self.folder, self.loops = number, folder, loops
        own = {shard: loop for shard, loop in loops.items() if owner_of(shard, WORKERS) == number}
        self.mesh = Mesh(number, WORKERS, SHARDS, UnixWires(folder), own)
        self.router = Router(ShardMap(SHARDS, NAMES), self.mesh.ports)

    async def ask(self, command: Command) -> Any:
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.router.submit(command, answered.set_result)
        return await answered

    async def restarted(self) -> Worker:
        self.mesh.stop()
        new = Worker(self.number, self.folder, self.loops)
        await new.mesh.start()
        return new


async def workers_in(folder: Path) -> list[Worker]:
    loops = {shard: shard_loop(shard, SHARDS) for shard in range(SHARDS)}
    workers = [Worker(number, folder, loops) for number in range(WORKERS)]
    for worker in workers:
        await worker.mesh.start()
    await until(lambda: all(worker.mesh.is_complete for worker in workers))
    return workers


def publish_to(shard: int) -> Publish:
    return Publish(f"queue-{shard}", [NewMessage(b"x")], QueueSettings())


def test_every_worker_serves_every_shard(tmp_path: Path) -> None:
    async def run() -> None:
        workers = await workers_in(tmp_path)
        for name in NAMES:
            await workers[0].ask(CreateQueue(name, QueueSettings()))
        for sequence, worker in enumerate(workers, start=1):
            for shard in range(SHARDS):
                assert await worker.ask(publish_to(shard)) == [Receipt(shard + 1, sequence, True)]
        for worker in workers:
            worker.mesh.stop()
        await asyncio.sleep(0)

    uvloop.run(run())


async def restart(workers: list[Worker], number: int, other: int) -> None:
    """While a worker is away, another one serves its own shards."""
    workers[number].mesh.stop()
    await until(lambda: not workers[other].mesh.is_complete)
    assert (await workers[other].ask(publish_to(number))).reason is Reason.UNAVAILABLE
    assert (await workers[other].ask(publish_to(other)))[0].fresh
    workers[number] = await workers[number].restarted()
    await until(lambda: all(worker.mesh.is_complete for worker in workers))
    assert (await workers[other].ask(publish_to(number)))[0].fresh


def test_a_worker_that_starts_again_is_linked_again(tmp_path: Path) -> None:
    """Both one that all others connect to, and one that connects to all others."""

    async def run() -> None:
        workers = await workers_in(tmp_path)
        await restart(workers, 0, 2)
        await restart(workers, 2, 0)
        for worker in workers:
            worker.mesh.stop()
        await asyncio.sleep(0)

    uvloop.run(run())


def test_a_late_greeting_on_a_lost_connection_does_not_leave_a_worker_without_a_link(tmp_path: Path) -> None:
    async def run() -> None:
        workers = await workers_in(tmp_path)
        earlier = workers[0].mesh.links[2]
        late = Link(2, {})
        await asyncio.get_running_loop().create_unix_connection(lambda: late, str(tmp_path / "worker-0"))
        await until(lambda: workers[0].mesh.links.get(2) not in (earlier, None))
        late.close()
        await until(lambda: late not in workers[0].mesh.links.values())
        await until(lambda: all(worker.mesh.is_complete for worker in workers))
        assert (await workers[0].ask(publish_to(2)))[0].fresh
        for worker in workers:
            worker.mesh.stop()
        await asyncio.sleep(0)

    uvloop.run(run())
