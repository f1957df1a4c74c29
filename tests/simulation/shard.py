"""One shard of a simulated store: its disk, which stays, and the log and the writer of each of its lives."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from random import Random

from penstock.broker.services.contract import Service
from penstock.broker.services.courier_source import CourierSource
from penstock.broker.services.courier_target import CourierTarget
from penstock.broker.services.loans import connect_loans
from penstock.broker.services.loans.borrower import Borrower
from penstock.broker.services.loans.lender import Lender
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.message_traces import MessageTraces
from penstock.broker.services.recalls import Recalls
from penstock.broker.shard_map import ShardMap, answers_for
from penstock.broker.writer.loop import Loop
from penstock.broker.writer.port import ClientPort
from penstock.broker.writer.rounds import Rounds
from penstock.broker.writer.waiters import Waiter
from penstock.cluster.routing.ports import OwnPort
from penstock.engine.engine import Engine
from penstock.engine.history import MemoryHistory, SharedHistory
from penstock.engine.name_sweep import NameSweep
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Delivery
from penstock.model.commands import Fetch, ForgetNames
from penstock.model.settings import QueueSettings
from penstock.storage.memory import MemorySnapshot
from tests.simulation.asked import Place
from tests.simulation.everywhere import BrokenPromiseError, promise
from tests.simulation.ledger import Ledger
from tests.simulation.scheduler import TIMER_LATE_NS_MAX, ProcessScheduler, VirtualTime
from tests.support.faulty import Faults, FaultyLog, rot

DOUBT_NS = 3 * SECOND_NS
DEADLINE_LATE_NS_MAX = 2 * TIMER_LATE_NS_MAX

for failing in ("writer.loop", "services.courier_source", "services.courier"):  # It is their daily bread here.
    logging.getLogger(f"penstock.server.{failing}").setLevel(logging.CRITICAL + 1)


def any_faults(random: Random) -> Faults:
    """Every world has disks and luck of its own."""
    return Faults(
        sync_ns_max=random.choice([1, SECOND_NS // 1000, SECOND_NS // 20]),
        write_fails=random.choice([0, 0, 0.002]),
        disk_is_full=random.choice([0, 0, 0.002]),
        sync_fails=random.choice([0, 0, 0.005]),
    )


class Shard:
    log: FaultyLog

    def __init__(
        self,
        time: VirtualTime,
        random: Random,
        ledger: Ledger,
        note: Callable[[str], None],
        number: int = 0,
        shards: ShardMap | None = None,
    ) -> None:
        self.number = number
        self.ledger = ledger
        self.faults = any_faults(random)
        self.failures = self.rotten = 0
        self.on_failure: Callable[[], None] = lambda: None
        self._time = time
        self._random = random
        self._note = note
        self._map = shards or ShardMap()
        self._services: list[Service] = []
        self._disk: list[bytes] = []
        self._snapshot: MemorySnapshot | None = None
        self._snapshot_waits: int | None = None  # The offset of one that is not durable yet.

    # Its lives

    def start(self, process: ProcessScheduler, rounds: Rounds | None = None) -> None:
        """`rounds`: those of all shards of the process."""
        self._process = process
        self._is_off = False
        engine, self.log = self._recover(self._open())
        self.loop = Loop(engine, self.log, self._time, process, rounds)
        self.loop.on_failure = self._failed
        self.loop.on_commit.append(self._committed)
        self.loop.doubt_ns = DOUBT_NS

    def offer(self) -> OwnPort:
        """For the others, when it is one of several."""
        reads = LogReads(self.loop)
        courier_source, courier = CourierSource(self.loop, reads), CourierTarget(self.loop, QueueSettings())
        courier_source.connect(self.number, self._map)
        borrower, lender = Borrower(self.loop), Lender(self.loop)
        self._services = [courier_source, courier, borrower, lender]
        return OwnPort(
            self.loop, courier_source, Recalls(self.loop, MessageTraces(self.loop, reads)), borrower, lender
        )

    def join(self, ports: Sequence[ClientPort]) -> None:
        """`ports`: all shards."""
        _, courier, borrower, lender = self._services
        assert isinstance(courier, CourierTarget)
        assert isinstance(borrower, Borrower)
        assert isinstance(lender, Lender)
        courier.connect({number: port for number, port in enumerate(ports) if number != self.number})
        connect_loans(borrower, lender, courier, self.number, self._map, ports)
        self._start_services()

    def _start_services(self) -> None:
        for service in self._services:
            service.start()

    def _open(self) -> FaultyLog:
        return FaultyLog(self._process.disk_after, self._random, self.faults, self._disk, self._snapshot)

    def _recover(self, log: FaultyLog) -> tuple[Engine, FaultyLog]:
        count, home = self._map.shards, self._map.of_name
        own = MemoryHistory()
        history = SharedHistory(own, answers_for(self.number, count)) if count > 1 else own
        engine = Engine(history, shard=self.number, shards=count, home=home)
        recovered = log.recover()
        if recovered.sections is not None:
            engine.restore(recovered.sections)
        for event, position in recovered.events:
            engine.evolve(event, position)
        self.read_disk()
        self._check_recovered(engine)
        self._snapshot_waits = None
        self._sweeping: NameSweep | None = None
        self._recovered_at = self._time.now
        self._note(f"shard {self.number} recovers, offset {log.end.offset}")
        return engine, log

    def _check_recovered(self, engine: Engine) -> None:
        self.ledger.check(engine)

    def crash(self, rot_max: int) -> None:
        """The power fails. While it is off, bits of old batches may flip."""
        self.read_disk()
        self._is_off = True
        self.log.crash()
        for _ in range(rot_max if self._snapshot else 0):
            assert self._snapshot is not None
            position = rot(self._disk, self._snapshot.facts.offset, self._random)
            if position is not None:
                self._note(f"the batch at {position} of shard {self.number} rots")
                self.rotten += 1
                self.ledger.rotten.add(position)

    def _failed(self, error: BaseException) -> None:
        self._note(f"shard {self.number} failed: {error}")
        self.failures += 1
        self.on_failure()
        self._process.after(SECOND_NS // 4, self._revive)

    def _revive(self) -> None:
        self.log.abandon()
        engine, self.log = self._recover(self._open())
        self.loop.revive(engine, self.log)
        self._start_services()

    def _committed(self) -> None:
        """Snapshots count once everything in them is durable."""
        if self._snapshot_waits is not None and self.log.end.offset >= self._snapshot_waits:
            self.log.publish_snapshot(self._snapshot_waits)
            self._snapshot, self._snapshot_waits = self.log.snapshot, None
        if self._snapshot_waits is None and self._random.random() < 0.01:
            self._snapshot_waits = self.log.appended.offset
            self.log.write_snapshot(self.loop.engine.sections(), self.log.appended, self._time.now)
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

    def end_faults(self) -> None:
        self.faults = self.log.faults = Faults()

    # What must hold at all times

    def read_disk(self) -> None:
        """What is there while the power is off may be cut at the next start."""
        if not self._is_off:
            self.ledger.read(self._disk)

    def check_waiters(self) -> None:
        loop, now = self.loop, self._time.now
        if loop.failure or now <= self._process.stopped_until + DEADLINE_LATE_NS_MAX:
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

    # What must hold in the end

    def check_rest(self) -> None:
        promise(self.loop.idle and not self.loop.failure, "the broker does not come to rest")
        promise(self.loop.waiters.count == 0, "somebody is still counted as waiting")
        self.read_disk()
        self.ledger.check(self.loop.engine)

    def drain(self) -> Callable[[], None]:
        """Take everything. What is returned is called when that is done: everything acknowledged and neither finished
        nor ended otherwise was delivered."""
        alive = [life for life in self.ledger.alive.values() if not life.kept and not self.ledger.is_rotten(life)]
        expected = {life.id for life in alive if life.expires_at > self._time.now}
        immortal = {life.id for life in alive if life.expires_at > self._time.now + SECOND_NS}
        drained: set[Place] = set()

        def take(answer: Answer) -> None:
            assert isinstance(answer, Sequence), answer
            drained.update((each.queue, each.sequence) for each in answer if isinstance(each, Delivery))

        def check() -> None:
            left, more = immortal - drained, drained - expected
            promise(not left and not more, f"left behind: {left}, too much: {more}")

        for name in self.loop.engine.numbers:
            self.ledger.asked.kick.add(name)
            self.loop.submit(Fetch(name, 1_000_000, lease_ns=0, confirm=False), take)
        return check
