"""Simulated nodes with a replicated store: shards move between them by leases, and epochs keep old owners out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.broker.writer.port import OwnedPort
from penstock.cluster.links.mesh import Mesh
from penstock.cluster.links.wires import UnixWires
from penstock.cluster.routing.router import Router
from penstock.engine.engine import Engine
from penstock.errors import FencedError, LogFailedError, StoreError
from penstock.limits import SECOND_NS
from penstock.model.values import Nanos, Stage
from penstock.storage.port import Progress
from tests.simulation.everywhere import promise
from tests.simulation.process import Process
from tests.simulation.requests import lived
from tests.simulation.shard import Shard
from tests.simulation.sharded import ASK_AGAIN_SECONDS, PART_NS_MAX, ShardedWorld, Worker
from tests.simulation.store import (
    LEASE_NS,
    STORE,
    Connection,
    Row,
    Store,
    acquire,
    append,
    keep_snapshot,
    release,
    renew,
)
from tests.support.faulty import Faults, FaultyLog

RENEW_NS = LEASE_NS // 3
SERVE_NS = 2 * LEASE_NS // 3  # How long an owner serves after its last good renewal.
POLL_NS = LEASE_NS // 4


class StoreLog(FaultyLog):
    """A log whose batches are durable when the store has them, with a local copy."""

    def __init__(self, shard: OwnedShard, row: Row) -> None:
        super().__init__(lambda _, __: None, shard.random, Faults(), row.batches, row.snapshot)
        self._shard = shard
        self.epoch = row.epoch

    def commit(self, now: Nanos, progress: Progress) -> None:
        if self._failed:
            raise LogFailedError("the log has failed") from self._failed
        assert self._under_way is None, "one commit at a time"
        self._under_way = self._seal(now)
        statement = append(self.epoch, len(self.durable), self._under_way)
        self._shard.run(statement, lambda result: self._appended(result, progress))

    def _appended(self, result: bool | StoreError, progress: Progress) -> None:
        if self._gone:
            return
        if result is True:
            assert self._under_way is not None
            self.durable.append(self._under_way)
            self._under_way = None
            progress(Stage.WRITE)
            progress(Stage.SYNC)
        else:
            error = result if isinstance(result, StoreError) else FencedError("another node owns the shard")
            self._failed = OSError(str(error))
            progress(error)

    def publish_snapshot(self, offset: int) -> None:
        super().publish_snapshot(offset)
        assert self.snapshot is not None
        self._shard.run(keep_snapshot(self.epoch, self.snapshot), lambda _: None)


class OwnedShard(Shard):
    """A shard from the moment a node owns it until it does not."""

    log: StoreLog

    def __init__(self, node: Node, number: int, row: Row, began: Nanos) -> None:
        world = node.world
        facts = (world.time, world.random, world.ledgers[number], world.note, number)
        super().__init__(*facts, world.map)
        self.random = world.random
        self._node = node
        self._store = world.store
        self._row = row
        self._renewed_at = began
        self.start(node.process)

    def _open(self) -> StoreLog:
        return StoreLog(self, self._row)

    def run(self, statement: Any, done: Callable[[Any], None]) -> None:
        self._node.connection.run(self.number, statement, done)

    def _check_recovered(self, engine: Engine) -> None:
        if self.is_owner:
            super()._check_recovered(engine)

    @property
    def is_owner(self) -> bool:
        """Whether nobody else has acquired the shard. Only the store knows."""
        return self._store.rows[self.number].epoch == self._store.safe[self.number].epoch == self._row.epoch

    def check_waiters(self) -> None:
        if self.is_owner:
            super().check_waiters()

    def read_disk(self) -> None:
        self.ledger.read(self._store.safe[self.number].batches)

    # ── Its lease ───────────────────────────────────────────────────────────────────────────────────────────

    def renew(self) -> None:
        began = self._time.now
        if self._node.owns(self):
            self.run(renew(self._row.epoch), lambda result: self._renewed(result, began))
            self._process.after(RENEW_NS, self.renew)
            self._process.after(SERVE_NS, self._watch)

    def _renewed(self, result: bool | StoreError, began: Nanos) -> None:
        if result is True:
            self._renewed_at = began
        elif result is False and not self.loop.failure:
            self._node.lose(self, "fenced")

    def _watch(self) -> None:
        if self._time.now >= self._renewed_at + SERVE_NS:
            self._node.lose(self, "the lease could not be renewed")

    # ── When the log fails ──────────────────────────────────────────────────────────────────────────────────

    def _failed(self, error: BaseException) -> None:
        self._node.world.failed += 1
        self._note(f"shard {self.number} of node {self._node.number} failed: {error}")
        if isinstance(error, FencedError):
            self._node.lose(self, "fenced")
        else:
            self._process.after(SECOND_NS // 20, self._acquire_again)

    def _acquire_again(self) -> None:
        """The outcome of a commit is unknown: own the shard in a new epoch, and see what it has."""
        began = self._time.now
        if self._node.owns(self):
            self.run(acquire(self._node.number), lambda row: self._acquired_again(row, began))

    def _acquired_again(self, row: Row | StoreError | None, began: Nanos) -> None:
        if not self._node.owns(self):
            return
        if isinstance(row, StoreError):
            self._process.after(SECOND_NS // 20, self._acquire_again)
        elif row is None or row.epoch != self._row.epoch + 1:
            self._node.lose(self, "another node has owned it since")
        else:
            self._row, self._renewed_at = row, began
            self._revive()

    def end(self, reason: str) -> None:
        """Answer all who wait, and write nothing more."""
        self.loop.on_failure = lambda _: None
        if not self.loop.failure:
            self.loop.fail(StoreError(reason))
        self.loop.end_doubt()
        self.log.abandon()
        self._closing = [asyncio.ensure_future(service.close()) for service in self._services]

    def crash(self, rot_max: int) -> None:
        """The local copy is not needed."""
        self.log.abandon()

    def end_faults(self) -> None:
        """It has none of its own."""


class Node(Worker):
    world: NodesWorld

    def start(self) -> None:
        world, self.run = self.world, self.run + 1
        world.note(f"node {self.number} starts, run {self.run}")
        self.process = Process(self.number, world.time, world.random, world.network)
        self.connection = Connection(world.store, self.process, world.network)
        self.shards: list[Shard] = []
        self.own: dict[int, OwnedPort] = {}
        self._acquiring: set[int] = set()
        self.process.run(self._open)

    def _open(self) -> None:
        world = self.world
        wires = UnixWires(Path("links"))
        facts = (world.workers_count, world.map.shards, wires, self.own)
        self.mesh = Mesh(self.number, *facts, epochs=self._epoch_of, ask_again_seconds=ASK_AGAIN_SECONDS)
        self.router = Router(world.map, self.mesh.ports)
        self._starting = asyncio.ensure_future(self.mesh.start())
        self._poll()

    def _epoch_of(self, number: int) -> int:
        (owned,) = [shard for shard in self.shards if isinstance(shard, OwnedShard) and shard.number == number]
        return owned.log.epoch

    def owns(self, shard: OwnedShard) -> bool:
        return shard in self.shards

    # ── What it owns ────────────────────────────────────────────────────────────────────────────────────────

    def _poll(self) -> None:
        """Acquire what is free. Links tell who owns the rest."""
        world = self.world
        for number in range(world.map.shards):
            if number not in self.own and number not in self._acquiring and self._wants(number):
                self._acquire(number)
        self.process.after(POLL_NS, self._poll)

    def _wants(self, number: int) -> bool:
        is_home = number % self.world.workers_count == self.number
        return self.world.random.random() < (0.8 if is_home else 0.2)

    def _acquire(self, number: int) -> None:
        began = self.world.time.now
        self._acquiring.add(number)
        self.connection.run(number, acquire(self.number), lambda row: self._acquired(number, row, began))

    def _acquired(self, number: int, row: Row | StoreError | None, began: Nanos) -> None:
        self._acquiring.discard(number)
        if isinstance(row, Row) and self.world.time.now < began + SERVE_NS:
            self.world.note(f"node {self.number} owns shard {number} in epoch {row.epoch}")
            self.world.moves += 1
            shard = OwnedShard(self, number, row, began)
            self.shards.append(shard)
            self.own[number] = shard.offer()
            shard.join(self.mesh.ports)
            self.mesh.changed()
            shard.renew()

    def lose(self, shard: OwnedShard, reason: str) -> None:
        if self.owns(shard):
            self.world.note(f"node {self.number} loses shard {shard.number}: {reason}")
            self._forget(shard)
            shard.end(reason)

    def _forget(self, shard: OwnedShard) -> None:
        self.shards.remove(shard)
        del self.own[shard.number]
        self.mesh.changed()

    def hand_over(self) -> None:
        """Give a shard to another node, as one that stops does: first finish what is under way."""
        if self.shards:
            shard = self.world.random.choice(self.shards)
            assert isinstance(shard, OwnedShard)
            self.world.note(f"node {self.number} hands over shard {shard.number}")
            self._forget(shard)
            self._when_idle(shard)

    def _when_idle(self, shard: OwnedShard) -> None:
        shard.loop.release_waiters()
        if shard.loop.idle or shard.loop.failure:
            shard.end("handed over")
            self.connection.run(shard.number, release(shard.log.epoch), lambda _: None)
        else:
            self.process.after(SECOND_NS // 1000, lambda: self._when_idle(shard))


class NodesWorld(ShardedWorld):
    def _employ(self) -> list[Worker]:
        random, self.moves, self.failed, self.rot_max = self.random, 0, 0, 0
        self.store = Store(self.time, random, len(self.ledgers))
        self._odds[self._fail_over] = random.choice([0, 0.0005])
        self._odds[self._lose_connection] = random.choice([0, 0.001])
        self._odds[self._hand_over] = random.choice([0, 0.001])
        self._odds[self._part_from_store] = random.choice([0, 0.001])
        return [Node(self, number, []) for number in range(self.workers_count)]

    @property
    def failures(self) -> int:
        return self.failed

    @property
    def nodes(self) -> list[Node]:
        return [node for node in self.workers if isinstance(node, Node)]

    def _fail_over(self) -> None:
        self.note("the standby of the store takes over")
        self.store.fail_over()
        for node in self.nodes:
            node.connection.lose()

    def _lose_connection(self) -> None:
        self.random.choice(self.nodes).connection.lose()

    def _hand_over(self) -> None:
        node = self.random.choice(self.nodes)
        if node.is_alive and not node.process.is_stopped:
            node.process.run(node.hand_over)

    def _part_from_store(self) -> None:
        node = self.random.randrange(self.workers_count)
        self.note(f"node {node} does not reach the store")
        self.network.part(node, STORE, self.random.randint(0, PART_NS_MAX))

    def read_disks(self) -> None:
        for ledger, row in zip(self.ledgers, self.store.safe, strict=True):
            ledger.read(row.batches)
        self.everywhere.check()

    def check_owners(self) -> None:
        owned = [shard.number for shard in self.shards if isinstance(shard, OwnedShard) and shard.is_owner]
        promise(sorted(owned) == list(range(self.map.shards)), f"only these shards are owned: {sorted(owned)}")


def simulate_nodes(seed: int, steps: int) -> NodesWorld:
    world = NodesWorld(seed)
    again = f"python -m tests.simulation --world nodes --seed {seed} --steps {steps}"
    return lived(world, lambda: world.live(steps), again)
