"""The links between all workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import uvloop

from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.loop import Loop
from penstock.cluster.links.codec import Announce
from penstock.cluster.links.link import Link
from penstock.cluster.links.mesh import Mesh, owner_of
from penstock.cluster.links.wires import UnixWires
from penstock.cluster.routing.router import Router
from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Receipt
from penstock.model.commands import Command, CreateQueue, DescribeQueue, Fetch, NewMessage, Publish
from penstock.model.settings import QueueSettings
from tests.support.live_loop import shard_loop, until

SHARDS, WORKERS = 5, 3
NAMES = {f"queue-{shard}": shard for shard in range(SHARDS)}


class Worker:
    def __init__(self, number: int, folder: Path, loops: dict[int, Loop], ask_again_seconds: float = 60) -> None:
        self.number, self.folder, self.loops = number, folder, loops
        own = {shard: loop for shard, loop in loops.items() if owner_of(shard, WORKERS) == number}
        self.mesh = Mesh(number, WORKERS, SHARDS, UnixWires(folder), own, ask_again_seconds=ask_again_seconds)
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


async def workers_in(folder: Path, ask_again_seconds: float = 60) -> list[Worker]:
    loops = {shard: shard_loop(shard, SHARDS) for shard in range(SHARDS)}
    workers = [Worker(number, folder, loops, ask_again_seconds) for number in range(WORKERS)]
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


def test_a_shard_is_with_the_worker_that_has_taken_it_over_last(tmp_path: Path) -> None:
    async def run() -> None:
        mesh = Mesh(0, WORKERS, SHARDS, UnixWires(tmp_path), {})
        one, other, again = (Link(0, {}) for _ in range(3))
        one.peer, other.peer, again.peer = 1, 2, 2
        for link, epoch, owner in ((one, 7, one), (other, 8, other), (one, 7, other), (again, 1, again)):
            assert link.peer is not None
            mesh.links[link.peer] = link
            mesh.acts[Announce](link, Announce({3: epoch}))
            assert mesh.link_to(3) is owner
        mesh.stop()

    asyncio.run(run())


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


def test_what_was_under_way_to_a_worker_that_is_gone_is_answered_by_the_next(tmp_path: Path) -> None:
    """What it had done is answered as it was, and the rest is done now."""

    async def run() -> None:
        workers = await workers_in(tmp_path)
        loop, asking = workers[0].loops[1], workers[2]
        for name in ("queue-1", "queue-4"):
            await asking.ask(CreateQueue(name, QueueSettings()))
        pause = loop.pause(lambda: None)
        done = asyncio.ensure_future(asking.ask(publish_to(1)))
        waiting = asyncio.ensure_future(asking.ask(Fetch("queue-4", wait_ns=60 * SECOND_NS)))
        await until(lambda: not loop.idle and workers[0].loops[4].waiting("queue-4") == 1)
        workers[1].mesh.stop()
        loop.resume(pause)
        await until(lambda: loop.engine.queues[2].rows.count == 1)
        await until(lambda: 1 not in asking.mesh.links)
        assert not done.done()
        assert not waiting.done()
        workers[1] = await workers[1].restarted()
        assert await done == [Receipt(2, 1, True)]
        assert loop.engine.queues[2].rows.count == 1, "it is not done twice"
        await asking.ask(publish_to(4))
        assert (await waiting)[0].body == b"x"
        for worker in workers:
            worker.mesh.stop()
        await asyncio.sleep(0)

    uvloop.run(run())


def test_what_nobody_can_tell_is_said_to_be_unknown(tmp_path: Path) -> None:
    async def run() -> None:
        workers = await workers_in(tmp_path, ask_again_seconds=0.2)
        loop, asking = workers[0].loops[1], workers[2]
        await asking.ask(CreateQueue("queue-1", QueueSettings()))
        loop.pause(lambda: None)
        publishing = asyncio.ensure_future(asking.ask(publish_to(1)))
        describing = asyncio.ensure_future(asking.ask(DescribeQueue("queue-1")))
        leasing = asyncio.ensure_future(asking.ask(Fetch("queue-1", wait_ns=60 * SECOND_NS)))
        await until(lambda: loop.commit.collecting)
        workers[1].mesh.stop()
        assert (await publishing).reason is Reason.OUTCOME_UNKNOWN
        assert (await describing).reason is Reason.UNAVAILABLE
        assert (await leasing).reason is Reason.UNAVAILABLE
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
