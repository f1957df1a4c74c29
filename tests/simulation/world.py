"""The simulated world: one broker, its disk, its clients, and everything that can go wrong, all from one seed."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

from penstock.dialects.glovebox.protocol import Glovebox
from penstock.engine.engine import Engine
from penstock.engine.name_sweep import NameSweep
from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Delivery, Done, Published, Pulled, Receipt, Refused, Repeated
from penstock.model.commands import (
    Command,
    CreateQueue,
    Fetch,
    Finish,
    FinishMany,
    ForgetNames,
    Publish,
    PublishOnce,
    PublishTopics,
    Pull,
    Purge,
    Release,
    Settle,
)
from penstock.model.values import Nanos, Stage
from penstock.server.config import GloveboxConfig
from penstock.server.writer.loop import Loop
from penstock.server.writer.waiters import Waiter
from penstock.storage.faulty import Faults, FaultyLog, rot
from penstock.storage.memory import MemorySnapshot
from tests.simulation.clients import QUEUES, Client, Consumer, Janitor, Publisher, Receiver, Retrier
from tests.simulation.guests import THINGS, WATCH, Keeper, Pusher, Searcher, SessionClient
from tests.simulation.ledger import BrokenPromiseError, Ledger, promise
from tests.simulation.scheduler import TIMER_LATE_NS_MAX, ProcessScheduler, VirtualTime

_SESSIONS = GloveboxConfig(session_seconds=2)
START_NS = 1_700_000_000 * SECOND_NS
DEADLINE_LATE_NS_MAX = 2 * TIMER_LATE_NS_MAX
TRACE_LINES_MAX = 60

logging.getLogger("penstock.server.writer.loop").setLevel(logging.CRITICAL + 1)  # Failing is its daily bread here.


@dataclass(eq=False)
class Request:
    number: int
    client: Client
    command: Command
    stage: Stage
    run: int  # Which run of the broker was asked.
    offset: int | None = None  # Where the log ended when it was decided; None while it waits for a message.
    waiter: Waiter | None = None


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.time = VirtualTime(self.random, START_NS)
        self.ledger = Ledger()
        self.numbers = count()
        self.winding_up = False
        self.trace: list[tuple[Nanos, str]] = []
        self.open: dict[int, Request] = {}  # Asked, and not yet answered.
        self.run = 0
        self.crashes = self.failures = self.answers = self.rotten = self.searches = 0
        self._request_numbers = count(1)
        self._disk: list[bytes] = []
        self._snapshot: MemorySnapshot | None = None
        self._snapshot_waits: int | None = None  # The offset of one that is not durable yet.
        # Every world has disks and luck of its own.
        self._faults = Faults(
            sync_ns_max=self.random.choice([1, SECOND_NS // 1000, SECOND_NS // 20]),
            write_fails=self.random.choice([0, 0, 0.002]),
            disk_is_full=self.random.choice([0, 0, 0.002]),
            sync_fails=self.random.choice([0, 0, 0.005]),
        )
        self._crash_odds = self.random.choice([0, 0.0005, 0.002])
        self._rot_max = self.random.choice([0, 1, 20])  # Batches that are damaged with each crash.
        self.sessions: list[SessionClient] = []
        self._start()
        for settings in [*QUEUES.items(), ("things", THINGS), ("watch", WATCH)]:
            self.loop.submit(CreateQueue(*settings), lambda _: None)
        people: list[type[Client]] = [Publisher] * 5 + [Retrier] * 2 + [Consumer] * 8 + [Receiver] * 3 + [Janitor]
        people += [Keeper, Pusher, Pusher, Searcher]
        self.clients = [person(self, f"{person.__name__} {number}") for number, person in enumerate(people)]
        self.sessions += [SessionClient(self, f"Session {number}") for number in range(2)]

    # The broker's life

    def _start(self) -> None:
        self.run += 1
        self.process = ProcessScheduler(self.time, self.random)
        engine, self.log = self._recover()
        self.loop = Loop(engine, self.log, self.time, self.process)
        self.loop.on_failure = self._failed
        self.loop.on_commit.append(self._committed)
        self.glovebox = Glovebox(_SESSIONS, self.loop.waiting, lambda: self.random.getrandbits(40))
        self.note(f"started, run {self.run}, offset {self.log.end.offset}")

    def _recover(self) -> tuple[Engine, FaultyLog]:
        log = FaultyLog(self.process.disk_after, self.random, self._faults, self._disk, self._snapshot)
        engine = Engine()
        recovered = log.recover()
        if recovered.sections is not None:
            engine.restore(recovered.sections)
        for event, position in recovered.events:
            engine.evolve(event, position)
        self.ledger.read(self._disk)
        self.ledger.check(engine)
        self._snapshot_waits = None
        self._sweeping: NameSweep | None = None
        self._recovered_at = self.time.now
        return engine, log

    def _crash(self) -> None:
        self.note("crash")
        self.crashes += 1
        self.process.alive = False
        self.log.crash()
        self._rot()
        self._start()
        for request in list(self.open.values()):
            del self.open[request.number]
            request.client.answered(request, None)
        for session in self.sessions:
            session.crashed()

    def _rot(self) -> None:
        """While the power is off, bits of old batches may flip."""
        for _ in range(self._rot_max if self._snapshot else 0):
            assert self._snapshot is not None
            position = rot(self._disk, self._snapshot.facts.offset, self.random)
            if position is not None:
                self.note(f"the batch at {position} rots")
                self.rotten += 1
                self.ledger.rotten.add(position)

    def _failed(self, error: BaseException) -> None:
        self.note(f"failed: {error}")
        self.failures += 1
        for session in self.sessions:
            session.failed()
        promise(not self.open, f"not told of the failure: {list(self.open.values())}")
        self.process.after(SECOND_NS // 4, self._revive)

    def _revive(self) -> None:
        self.log.abandon()
        engine, self.log = self._recover()
        self.loop.revive(engine, self.log)
        self.note(f"revived, offset {self.log.end.offset}")

    def _committed(self) -> None:
        """Snapshots count once everything in them is durable."""
        if self._snapshot_waits is not None and self.log.end.offset >= self._snapshot_waits:
            self.log.publish_snapshot(self._snapshot_waits)
            self._snapshot, self._snapshot_waits = self.log.snapshot, None
        if self._snapshot_waits is None and self.random.random() < 0.01:
            self._snapshot_waits = self.log.appended.offset
            self.log.write_snapshot(self.loop.engine.sections(), self.log.appended, self.time.now)
        self._sweep()

    def _sweep(self) -> None:
        """A little after each commit: look for names that nobody uses, and forget them."""
        names = self.loop.engine.names
        if names.has_unused:
            self.loop.submit(ForgetNames(), lambda _: None)
        elif self._sweeping is None:
            names.end_sweep()
            self._sweeping = NameSweep(self.loop.engine)
        elif not self._sweeping.step():
            self._sweeping = None

    # Requests

    def ask(self, client: Client, command: Command, stage: Stage) -> Request:
        request = Request(next(self._request_numbers), client, command, stage, self.run)
        self.open[request.number] = request
        self.note(f"#{request.number} {client.name} asks {command} at {stage.name}")
        self.remember(command)
        request.waiter = self.loop.submit(command, lambda answer: self._answer(request, answer), stage)
        if request.waiter is None:
            request.offset = self.log.appended.offset
        return request

    def remember(self, command: Command) -> None:
        """What somebody asks for may happen."""
        match command:
            case Finish():
                self.ledger.finish_asked.add((command.queue, command.sequence))
            case FinishMany():
                self.ledger.finish_asked.update((each.queue, each.sequence) for each in command.finishes)
            case Settle(outcome="retry"):
                self.ledger.release_asked.add((command.queue, command.sequence))
            case Settle():
                self.ledger.finish_asked.add((command.queue, command.sequence))
            case Release():
                self.ledger.release_asked.add((command.queue, command.sequence))
            case Fetch(confirm=False):
                self.ledger.kick_asked.add(command.queue)
            case Purge():
                self.ledger.purge_asked.add(command.queue)
            case Pull():
                self.ledger.result_asked.update((queue, sequence) for queue, sequence, _ in command.results)
                self.ledger.kick_asked.update(draw.queue for draw in command.draws if not draw.retries)
            case _:
                pass

    def hang_up(self, request: Request) -> bool:
        """The client goes away while it waits: it gets nothing, and so loses nothing."""
        if request.number not in self.open or request.waiter is None or request.waiter.timer is None:
            return False
        request.waiter.cancel()
        del self.open[request.number]
        self.note(f"#{request.number} hung up")
        return True

    def _answer(self, request: Request, answer: Answer) -> None:
        try:
            self._check(request, answer)
        except Exception as error:
            raise BrokenPromiseError(f"{request}: {error!r}") from error
        self.time.after(0, lambda: request.client.answered(request, answer))

    def _check(self, request: Request, answer: Answer) -> None:
        self.note(f"#{request.number} is answered {answer}")
        promise(request.run == self.run, f"answered by a broker that is dead: {request}")
        promise(request.number in self.open, f"answered twice: {request}")
        del self.open[request.number]
        self.answers += 1
        self.ledger.read(self._disk)
        if isinstance(answer, Refused) and answer.reason is Reason.UNAVAILABLE:
            promise(bool(self.loop.failure), f"refused without a reason: {request}")
        else:
            self._check_stage(request)
            self._check_answer(request, answer)

    def _check_stage(self, request: Request) -> None:
        """Nothing is answered before all that it may tell of has reached the stage."""
        offset = request.offset
        if offset is None:
            offset = 0 if request.waiter else self.log.appended.offset
        if request.stage is Stage.SYNC:
            promise(self.log.end.offset >= offset, f"answered before the sync: {request}")
        elif request.stage is Stage.WRITE:
            promise(self.log.written_offset >= offset, f"answered before the write: {request}")

    def _check_answer(self, request: Request, answer: Answer) -> None:
        command = request.command
        if request.stage is not Stage.SYNC:
            return
        if isinstance(command, Publish) and isinstance(answer, Sequence):
            for receipt, message in zip(answer, command.messages, strict=True):
                assert isinstance(receipt, Receipt)
                self.ledger.acknowledge(receipt, message.body)
        elif isinstance(command, PublishOnce) and isinstance(answer, Repeated | Sequence):
            published = answer.published if isinstance(answer, Repeated) else answer
            for each, message in zip(published, command.publish.messages, strict=True):
                assert isinstance(each, Published)
                self.ledger.acknowledge(each, message.body)
        elif isinstance(command, PublishTopics) and isinstance(answer, Sequence):
            for each, message in zip(answer, command.messages, strict=True):
                assert isinstance(each, Published)
                self.ledger.acknowledge_version(each, message.body)
        elif isinstance(command, Settle) and isinstance(answer, Done):
            if command.outcome == "success":
                self.ledger.finish((command.queue, command.sequence))
        elif isinstance(command, Finish) and isinstance(answer, Done):
            self.ledger.finish((command.queue, command.sequence))
        elif isinstance(command, Fetch) and isinstance(answer, Sequence):
            promise(len(answer) <= command.count, f"more than asked for: {request}")
            for delivery in answer:
                assert isinstance(delivery, Delivery)
                self.ledger.deliver(delivery, command)
        elif isinstance(command, Pull) and isinstance(answer, Pulled):
            for drawn in answer.drawn:
                self.ledger.receive(command.receiver, drawn)
            wrong = {(each.queue, each.sequence) for each in answer.wrong}
            for queue, sequence, _ in command.results:
                if queue == "kept" and (queue, sequence) not in wrong:
                    self.ledger.accept(command.receiver, queue, sequence)

    # Running

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
            if self.random.random() < self._crash_odds:
                self._crash()
        self._wind_up()

    def _step(self) -> None:
        promise(self.time.step(), "nothing will ever happen again")
        self._check_waiters()

    def _check_waiters(self) -> None:
        loop, now = self.loop, self.time.now
        if loop.failure:
            return
        due = max(loop.engine.next_deadline, self._recovered_at)
        promise(now <= due + DEADLINE_LATE_NS_MAX, "a deadline was missed")
        for name, waiters in loop.waiters.by_key.items():
            if not isinstance(name, str):
                self._check_receivers(list(waiters))
                continue
            queue = loop.engine.queue(name)
            promise(queue is not None, f"somebody waits at queue {name}, which is gone")
            if queue is not None and queue.next_ready(1, now):
                raise BrokenPromiseError(f"{len(waiters)} wait at queue {queue.name}, where messages are ready")

    def _check_receivers(self, waiters: list[Waiter]) -> None:
        """What is there for a receiver is handed to it, at the latest when a timer is as late as it may be."""
        engine, now = self.loop.engine, self.loop.now()
        late = now - TIMER_LATE_NS_MAX - DEADLINE_LATE_NS_MAX
        for waiter in waiters:
            if late > engine.time:
                promise(not engine.decide(waiter.command, late).answer, f"{waiter.command} waits for what is there")

    def _wind_up(self) -> None:
        """No new requests and no more faults. Every request is answered; what is left can be fetched."""
        self.winding_up = True
        self._crash_odds = 0
        self._faults = self.log.faults = Faults()
        deadline = self.time.now + 10 * SECOND_NS
        self.time.at(deadline, lambda: None)
        while self.time.now < deadline:
            self._step()
        promise(not self.open, f"never answered: {list(self.open.values())}")
        promise(self.loop.idle and not self.loop.failure, "the broker does not come to rest")
        promise(self.loop.waiters.count == 0, "somebody is still counted as waiting")
        self.ledger.read(self._disk)
        self.ledger.check(self.loop.engine)
        for session in self.sessions:
            session.check()
        self._drain()

    def _drain(self) -> None:
        """Everything acknowledged and neither finished nor ended otherwise is delivered."""
        alive = [life for life in self.ledger.alive.values() if not life.kept and not self.ledger.is_rotten(life)]
        expected = {life.id for life in alive if life.expires_at > self.time.now}
        immortal = {life.id for life in alive if life.expires_at > self.time.now + SECOND_NS}
        drained: set[tuple[int, int]] = set()

        def take(answer: Answer) -> None:
            assert isinstance(answer, Sequence), answer
            drained.update((each.queue, each.sequence) for each in answer if isinstance(each, Delivery))

        for name in self.loop.engine.numbers:
            self.ledger.kick_asked.add(name)
            self.loop.submit(Fetch(name, 1_000_000, lease_ns=0, confirm=False), take)
        end = self.time.now + SECOND_NS // 2
        self.time.at(end, lambda: None)
        while self.time.now < end:
            self._step()
        promise(immortal <= drained <= expected, f"left behind: {immortal - drained}, too much: {drained - expected}")

    def read_disk(self) -> None:
        self.ledger.read(self._disk)

    # When it goes wrong

    def note(self, what: str) -> None:
        self.trace.append((self.time.now, what))
        if len(self.trace) > 4 * TRACE_LINES_MAX:
            del self.trace[: 2 * TRACE_LINES_MAX]

    def story(self) -> str:
        lines = [f"{(now - START_NS) / SECOND_NS:12.6f}  {what[:200]}" for now, what in self.trace[-TRACE_LINES_MAX:]]
        return "\n".join(lines)


class SimulationError(AssertionError):
    """A broken promise, with all that is needed to see it again."""


def simulate(seed: int, steps: int) -> World:
    world = World(seed)
    try:
        world.live(steps)
    except (Exception, BrokenPromiseError) as error:
        again = f"python -m tests.simulation --seed {seed} --steps {steps}"
        raise SimulationError(f"{world.story()}\n\n{type(error).__name__}: {error}\n\n{again}") from error
    return world
