"""A simulated store with several shards over several workers, which crash, are stopped, and lose their links."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.broker.shard_map import ShardMap, answers_for
from penstock.broker.writer.rounds import Rounds
from penstock.cluster.links.link import Link
from penstock.cluster.links.mesh import Mesh
from penstock.cluster.links.wires import UnixWires
from penstock.cluster.routing.router import Router
from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model.commands import Command
from penstock.model.values import Nanos, Stage
from tests.simulation.clients import Client, Consumer, Janitor, Publisher, Receiver, Retrier
from tests.simulation.everywhere import promise
from tests.simulation.guests import Keeper, Pusher
from tests.simulation.ledger import Ledger
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.requests import Request, Requests, lived
from tests.simulation.shard import Shard
from tests.simulation.travellers import ALL_QUEUES, Founder, Messenger, Spreader, Teller

RESTART_NS_MAX = 2 * SECOND_NS
STOP_NS_MAX = 3 * SECOND_NS
PART_NS_MAX = 4 * SECOND_NS
ASK_AGAIN_SECONDS = 3.0
BAD_DISKS = 0.5  # In so many worlds one of the logs is on a disk
BAD_DISK_FAILS = 0.1  # that fails so often.


class CountedRounds(Rounds):
    """Counts what is worth a simulation: logs that are written together, and one of them that fails."""

    def __init__(self, process: Process, counts: Counter[str]) -> None:
        super().__init__(process)
        self._counts = counts
        self._together = False

    def _flush(self) -> None:
        is_new = not self.under_way
        super()._flush()
        if is_new and self.under_way:
            self._together = len(self.under_way) > 1
            self._counts["joint"] += self._together

    def ended(self, member: Any) -> None:
        self._counts["joint failures"] += self._together and bool(member.failure) and member in self.under_way
        super().ended(member)


class Worker:
    """One worker over all its lives."""

    def __init__(self, world: Any, number: int, shards: list[Shard]) -> None:
        self.world: ShardedWorld = world
        self.number = number
        self.run = 0
        self.shards = shards
        self.start()

    @property
    def is_alive(self) -> bool:
        return self.process.alive

    def start(self) -> None:
        world, self.run = self.world, self.run + 1
        world.note(f"worker {self.number} starts, run {self.run}")
        self.process = Process(self.number, world.time, world.random, world.network)
        rounds = CountedRounds(self.process, world.commits)
        for shard in self.shards:
            shard.start(self.process, rounds)
        self.process.run(self._open)

    def _open(self) -> None:
        world = self.world
        own = {shard.number: shard.offer() for shard in self.shards}
        facts = (world.workers_count, world.map.shards, UnixWires(Path("links")), own)
        self.mesh = Mesh(self.number, *facts, ask_again_seconds=ASK_AGAIN_SECONDS)
        self.router = Router(world.map, self.mesh.ports)
        self._starting = asyncio.ensure_future(self.mesh.start())
        for shard in self.shards:
            shard.join(self.mesh.ports)

    def crash(self) -> None:
        world = self.world
        world.note(f"worker {self.number} crashes")
        world.network.end_of(self.process)
        self.process.end()
        for shard in self.shards:
            shard.crash(world.rot_max)
        world.time.after(world.random.randint(0, RESTART_NS_MAX), self.start)

    def check_rest(self) -> None:
        promise(self.mesh.is_complete, f"worker {self.number} has links to {list(self.mesh.links)} only")
        for link in self.mesh.links.values():
            self._check_link(link)
        for shard in self.shards:
            shard.check_rest()

    def _check_link(self, link: Link) -> None:
        """Only couriers and lenders wait for the other worker."""
        couriers = len(self.shards) * len(self.world.workers[link.peer or 0].shards)
        promise(
            len(link.calls) <= 2 * couriers, f"worker {self.number} waits for worker {link.peer}: {list(link.calls)}"
        )
        size = sum(call.size for call in link.calls.values())
        promise(link.unanswered_bytes == size, f"{link.unanswered_bytes} bytes count as unanswered, not {size}")


class ShardedWorld(Requests):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        random = self.random
        self.crashes = self.stops = 0
        self.commits: Counter[str] = Counter()
        self.workers_count = random.choice([2, 2, 3])
        shards = self.workers_count * random.choice([1, 2, 3])
        self.network = Network(self.time, random)
        self.rot_max = random.choice([0, 0, 0, 20])
        self.map = ShardMap(shards, self._homes(shards))
        self.ledgers = [Ledger(self.everywhere, answers_for(shard, shards)) for shard in range(shards)]
        self._odds: dict[Callable[[], None], float] = {self._crash: random.choice([0, 0.0005, 0.002])}
        self._odds[self._stop] = random.choice([0, 0.0005, 0.002])
        self._odds[self.network.lose_any] = random.choice([0, 0.001, 0.005])
        self._odds[self.network.stall_any] = random.choice([0, 0.001, 0.005])
        self._odds[self._part] = random.choice([0, 0.0005])
        self._calm_at: Nanos = NEVER_NS
        self.workers = self._employ()
        people: list[type[Client]] = [Publisher] * 5 + [Retrier] * 2 + [Consumer] * 8 + [Receiver] * 3 + [Janitor]
        people += [Keeper, Pusher, Pusher] + [Spreader] * 4 + [Founder, Messenger] + [Teller] * 5
        self.clients = [person(self, f"{person.__name__} {number}") for number, person in enumerate(people)]

    def _employ(self) -> list[Worker]:
        shards = [
            Shard(self.time, self.random, ledger, self.note, number, self.map)
            for number, ledger in enumerate(self.ledgers)
        ]
        if self.random.random() < BAD_DISKS:
            bad = self.random.choice(shards)
            bad.faults = bad.faults._replace(sync_fails=BAD_DISK_FAILS)
        owned = [shards[number :: self.workers_count] for number in range(self.workers_count)]
        return [Worker(self, number, shards) for number, shards in enumerate(owned)]

    def _homes(self, shards: int) -> dict[str, int]:
        return {name: self.random.randrange(shards) for name in ALL_QUEUES}

    # What goes wrong

    def _crash(self) -> None:
        worker = self.random.choice(self.workers)
        if worker.is_alive:
            self.crashes += 1
            worker.crash()
            asked = (worker.number, worker.run)
            self.forget([request for request in self.open.values() if (request.worker, request.run) == asked])

    def _stop(self) -> None:
        worker, duration = self.random.choice(self.workers), self.random.randint(0, STOP_NS_MAX)
        self.note(f"worker {worker.number} stops for {duration / SECOND_NS:.3f} s")
        self.stops += 1
        worker.process.stop(self.time.now + duration)

    def _part(self) -> None:
        one, other = self.random.sample(range(self.workers_count), 2)
        self.note(f"workers {one} and {other} do not reach each other")
        self.network.part(one, other, self.random.randint(0, PART_NS_MAX))

    def check_owners(self) -> None:
        """In the end each shard is served."""

    # Requests

    def ask(self, client: Client, command: Command, stage: Stage) -> Request:
        worker = self.random.choice(self.workers)
        request = self.open_request(client, command, stage, worker.run)
        request.worker = worker.number
        if worker.is_alive:
            worker.process.soon(lambda: self._submit(worker.router, request))
        else:
            self.time.after(SECOND_NS // 100, lambda: self.forget([request]))
        return request

    def _submit(self, router: Router, request: Request) -> None:
        request.pending = router.submit(request.command, lambda answer: self.answer(request, answer), request.stage)

    def hang_up(self, request: Request) -> bool:
        """A worker that is stopped does not see it."""
        process, done = self.workers[request.worker].process, list[bool]()
        if not process.is_stopped:
            process.run(lambda: done.append(super(ShardedWorld, self).hang_up(request)))
        return any(done)

    def ledger_of(self, queue: int | str) -> Ledger:
        return self.ledgers[self.map.of_name(queue) if isinstance(queue, str) else self.map.of_number(queue)]

    @property
    def failures(self) -> int:
        return sum(shard.failures for shard in self.shards)

    @property
    def shards(self) -> list[Shard]:
        return [shard for worker in self.workers for shard in worker.shards]

    def read_disks(self) -> None:
        for shard in self.shards:
            shard.read_disk()
        self.everywhere.check()

    def check_unavailable(self, request: Request) -> None:
        promise(self.time.now < self._calm_at, f"refused without a reason: {request}")

    # Running

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            for trouble, odds in self._odds.items():
                if self.random.random() < odds:
                    trouble()
        self._wind_up()

    def step(self) -> None:
        promise(self.time.step(), "nothing will ever happen again")
        for worker in self.workers:
            if worker.is_alive and not worker.process.is_stopped:
                for shard in worker.shards:
                    shard.check_waiters()

    def _wind_up(self) -> None:
        """No new requests and no more faults. Every request is answered; what is left can be fetched."""
        self.winding_up = True
        self.network.heal()
        self._calm_at = self.time.now + 10 * SECOND_NS
        for shard in self.shards:
            shard.end_faults()
        self.pass_time(15 * SECOND_NS)
        promise(not self.open, f"never answered: {list(self.open.values())}")
        for worker in self.workers:
            worker.check_rest()
        self.check_owners()
        if not self.rot_max:
            self.everywhere.check_end()
        checks = [shard.drain() for shard in self.shards]
        self.pass_time(SECOND_NS // 2)
        for check in checks:
            check()

    def close(self) -> None:
        for worker in self.workers:
            if worker.is_alive:
                worker.process.end()


def simulate_shards(seed: int, steps: int) -> ShardedWorld:
    world = ShardedWorld(seed)
    again = f"python -m tests.simulation --world shards --seed {seed} --steps {steps}"
    return lived(world, lambda: world.live(steps), again)
