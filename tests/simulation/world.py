"""The simulated world: one broker, its disk, its clients, and everything that can go wrong, all from one seed."""

from __future__ import annotations

from penstock.broker.writer.loop import Loop
from penstock.config.dialects import GloveboxConfig
from penstock.dialects.glovebox.protocol import Glovebox
from penstock.limits import SECOND_NS
from penstock.model.commands import Command, CreateQueue
from penstock.model.values import Stage
from tests.simulation.clients import QUEUES, Client, Consumer, Janitor, Publisher, Receiver, Retrier
from tests.simulation.everywhere import promise
from tests.simulation.guests import THINGS, WATCH, Keeper, Pusher, Searcher, SessionClient
from tests.simulation.ledger import Ledger
from tests.simulation.requests import Request, Requests, lived
from tests.simulation.scheduler import ProcessScheduler
from tests.simulation.shard import Shard

_SESSIONS = GloveboxConfig(session_seconds=2)


class World(Requests):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.run = 0
        self.crashes = self.searches = 0
        self.shard = Shard(self.time, self.random, Ledger(self.everywhere), self.note)
        self.shard.on_failure = self._failed
        self._crash_odds = self.random.choice([0, 0.0005, 0.002])
        self._rot_max = self.random.choice([0, 1, 20])  # Batches that are damaged with each crash.
        self.sessions: list[SessionClient] = []
        self._start()
        for settings in [*QUEUES.items(), ("things", THINGS), ("watch", WATCH)]:
            self.loop.submit(CreateQueue(*settings), lambda _: None)
        people: list[type[Client]] = [Publisher] * 5 + [Retrier] * 2 + [Consumer] * 8 + [Receiver] * 3 + [Janitor]
        people += [Keeper, Pusher, Pusher]
        self.clients = [person(self, f"{person.__name__} {number}") for number, person in enumerate(people)]
        self.clients.append(Searcher(self, "Searcher"))
        self.sessions += [SessionClient(self, f"Session {number}") for number in range(2)]

    @property
    def ledger(self) -> Ledger:
        return self.shard.ledger

    @property
    def loop(self) -> Loop:
        return self.shard.loop

    # The broker's life

    def _start(self) -> None:
        self.run += 1
        self.note(f"run {self.run} starts")
        self.process = ProcessScheduler(self.time, self.random)
        self.shard.start(self.process)
        self.glovebox = Glovebox(_SESSIONS, lambda: self.random.getrandbits(40))

    def _crash(self) -> None:
        self.note("crash")
        self.crashes += 1
        self.process.alive = False
        self.shard.crash(self._rot_max)
        self._start()
        self.forget(list(self.open.values()))
        for session in self.sessions:
            session.crashed()

    def _failed(self) -> None:
        for session in self.sessions:
            session.failed()

    # Requests

    def ask(self, client: Client, command: Command, stage: Stage) -> Request:
        request = self.open_request(client, command, stage, self.run)
        request.failures = self.shard.failures
        request.pending = self.loop.submit(command, lambda answer: self.answer(request, answer), stage)
        if request.pending is None:
            request.offset = self.shard.log.appended.offset
        return request

    def ledger_of(self, queue: int | str) -> Ledger:
        return self.shard.ledger

    def read_disks(self) -> None:
        self.shard.read_disk()

    def check_unavailable(self, request: Request) -> None:
        has_failed = self.loop.failure or self.shard.failures > request.failures
        promise(bool(has_failed), f"refused without a reason: {request}")

    def check_stage(self, request: Request) -> None:
        promise(request.run == self.run, f"answered by a broker that is dead: {request}")
        offset, log = request.offset, self.shard.log
        if offset is None:
            offset = 0 if request.pending else log.appended.offset
        if request.stage is Stage.SYNC:
            promise(log.end.offset >= offset, f"answered before the sync: {request}")
        elif request.stage is Stage.WRITE:
            promise(log.written_offset >= offset, f"answered before the write: {request}")

    # Running

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            if self.random.random() < self._crash_odds:
                self._crash()
        self._wind_up()

    def step(self) -> None:
        promise(self.time.step(), "nothing will ever happen again")
        self.shard.check_waiters()

    def _wind_up(self) -> None:
        """No new requests and no more faults. Every request is answered; what is left can be fetched."""
        self.winding_up = True
        self.shard.end_faults()
        self.pass_time(10 * SECOND_NS)
        promise(not self.open, f"never answered: {list(self.open.values())}")
        self.shard.check_rest()
        for session in self.sessions:
            session.check()
        check = self.shard.drain()
        self.pass_time(SECOND_NS // 2)
        check()


def simulate(seed: int, steps: int) -> World:
    world = World(seed)
    return lived(world, lambda: world.live(steps), f"python -m tests.simulation --seed {seed} --steps {steps}")
