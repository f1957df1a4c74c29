"""The single writer: every command passes here, and every answer waits here until what it depends on is durable.

    submit ─► collector ─► waking ─► executor ─► engine.decide, log.append, engine.evolve
                              │            │
                              ▼            ▼
                           waiters      commit ─► the answers, when the batch has reached their stage

A client whose command finds nothing waits (`waiters.py`); events that are applied wake it (`waking.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import cast

from penstock.broker.figures.measures import Samples, one
from penstock.broker.figures.tally import Tally
from penstock.broker.room import Room
from penstock.broker.writer.asked import OutcomeRecords
from penstock.broker.writer.collector import COLLECTED, Collected, Collector
from penstock.broker.writer.commit import Doubts, GroupCommit, give
from penstock.broker.writer.executor import READS, Executor
from penstock.broker.writer.followers import Follower
from penstock.broker.writer.gate import Gate
from penstock.broker.writer.port import Lost, Reply, Report, nobody
from penstock.broker.writer.recent import Recent
from penstock.broker.writer.rounds import Rounds
from penstock.broker.writer.scheduler import Deadline, Scheduler
from penstock.broker.writer.waiters import Waiter, Waiters, Watch
from penstock.broker.writer.waking import Waking
from penstock.engine.engine import Engine
from penstock.engine.schedules import Planned
from penstock.errors import DamagedExtentError, FencedError, Reason
from penstock.limits import BATCH_BYTES_MAX, DOUBT_SECONDS, SECOND_NS, UNREAD_BYTES_DEFAULT
from penstock.model.answers import Done, Refused
from penstock.model.client import Client
from penstock.model.commands import Command, Publish, PublishRun, Waiting
from penstock.model.consuming import Consume
from penstock.model.kinds import Kind
from penstock.model.queries import Ask, Query
from penstock.model.values import Nanos, Position, Stage
from penstock.storage.port import Log

logger = logging.getLogger(__name__)

_DONE = Done()
_SYNC = Stage.SYNC  # Looking a member up in an enum is not free on the hottest path.
_BEHIND = Refused(Reason.UNAVAILABLE, "the disk does not keep up")


class Loop:
    """The writer as its shells, its services (`port.py`) and the broker know it. It has more than 30 methods, because
    each of them has some."""

    def __init__(
        self,
        engine: Engine,
        log: Log,
        clock: Callable[[], Nanos],
        scheduler: Scheduler,
        rounds: Rounds | None = None,
        wall: Callable[[], Nanos] | None = None,
        room: Room | None = None,
    ) -> None:
        """`rounds`, `room`: those of all shards of the process. `wall`: the clock of the machine, which schedules go
        by, if it is not `clock`."""
        wall = wall or clock
        self.room = room = room or Room(UNREAD_BYTES_DEFAULT, scheduler.soon)
        deadline, calendar = (
            Deadline(clock, scheduler, self._on_deadline),
            Deadline(wall, scheduler, self._on_calendar),
        )
        self._doubts = Doubts(scheduler)
        self.doubt_ns = DOUBT_SECONDS * SECOND_NS  # How long what was in flight to a log that failed waits.
        self._collected: Collected = {}
        self.waiters = Waiters(clock, scheduler)
        self.commit = GroupCommit(log, clock, scheduler, self._collected, rounds or Rounds(scheduler), room)
        self.executor = Executor(engine, self.commit, self.waiters, clock, wall, deadline, calendar, room)
        self._waking = Waking(self.executor, self.commit, self.waiters, deadline, calendar, scheduler)
        self._collector = Collector(self._collected, self._waking, self.commit, self.waiters.woken)
        self._deadline, self._calendar = deadline, calendar
        outcomes = OutcomeRecords(self.executor, self.commit, self._waking.fetches, self._collector.decide)
        self.origin, self.answer_again = outcomes.origin, outcomes.answer_again
        self.gate = Gate(self.submit, self._queue_name)
        self.submit_as, self.refusal = self.gate.submit, self.gate.refusal
        self.ask: Ask = _nobody  # Its services answer, once there are some.
        self.on_failure: Callable[[BaseException], None] = lambda _: None
        self.decide_collected = self._collector.decide
        self.events_by_kind = self.executor.events_by_kind
        self.on_commit = self.commit.on_commit
        self.pause, self.resume = self.commit.rounds.pause, self.commit.rounds.resume
        self.on_queue, self.on_token = self.executor.on_queue, self.executor.on_token
        self.on_damage = self.executor.damage.on_damage
        self.commit.decide_collected = self.decide_collected
        self.commit.on_failure = self.fail
        self._arm()

    def submit(
        self, command: Command, reply: Reply, stage: Stage = _SYNC, client: Client | None = None
    ) -> Waiter | None:
        """Decide and apply a command; `reply` is called with the answer once it is as durable as asked. Returns a
        client that may have to wait: if it is cancelled, it is not answered."""
        commit = self.commit
        if commit.failure or (commit.rounds.under_way and commit.log.collecting > BATCH_BYTES_MAX):
            reply(_unwritable(commit.failure) if commit.failure else _BEHIND)
            return None
        kind, collected = type(command), self._collected
        if type(command) is Publish and command.fleeting and command.queue in self.waiters.by_key:
            self.decide_collected()
            if self._waking.hand_over(command, reply):
                return None
        waiter: Waiter | None = None
        if kind in READS and (client is not None or getattr(command, "wait_ns", None)):
            if kind is Consume:
                command, kind = self._delivering(cast("Consume", command))
            waiter = Waiter(self._waking, cast("Waiting", command), reply, stage, client)
        if kind not in COLLECTED or (waiter and (waiter.is_long or waiter.is_turned_away)):
            self.decide_collected()
            self._waking.answer_or_wait(command, reply, stage, waiter)
            if self.waiters.woken:
                self._waking.wake()
            return waiter if waiter and waiter.patient else None
        if kind in collected:
            entries = collected[kind]
        else:
            if collected and (kind is PublishRun or PublishRun in collected):
                self.decide_collected()  # Or a client's run and its other messages could change places.
            entries = collected[kind] = []
        entries.append((command, reply, stage, waiter))
        if len(entries) >= COLLECTED[kind]:
            self.decide_collected()
        elif not commit.flush_is_due and (stage is not _SYNC or not commit.rounds.under_way):
            commit.flush_soon()
        return waiter if waiter and waiter.patient else None

    def _delivering(self, command: Consume) -> tuple[Command, type[Command]]:
        """What clients wait for differs, so it is known before one waits."""
        queue = self.executor.engine.queue(command.queue)
        wanted = command.of(queue.settings if queue else None) or command  # Else it is refused.
        return wanted, type(wanted)

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        """Call when everything decided so far has reached the stage. Not called if the log fails first."""
        self.reach(stage, lambda answer: None if isinstance(answer, Refused) else callback())

    def reach(self, stage: Stage, reply: Reply) -> None:
        """Like `when`, but always called: with `Done`, or with `Refused` if the log fails first."""
        if self.failure:
            reply(_unwritable(self.failure))
        else:
            self.commit.hold(reply, _DONE, stage)

    def hold_schedules(self, needs_keys: Callable[[Planned], bool]) -> None:
        """Ask before a schedule runs that is due. True: it is held until it is released."""
        self._waking.needs_keys = needs_keys

    def release_schedule(self, name: str, reply: Reply, stage: Stage = _SYNC) -> None:
        """Run a schedule that was held, if it is due; answered when that is as durable as asked."""
        if not self.commit.failure:
            self.engine.schedules.release(name)
            self._waking.run_schedules()
        self.commit.hold(reply, _unwritable(self.commit.failure) if self.commit.failure else _DONE, stage)

    def watch(self, queue: str, wake: Callable[[], None]) -> Watch:
        """Call once when the queue has a ready message; now, if it has one. The queue need not exist yet."""
        self.decide_collected()
        return self._waking.watch(queue, wake)

    def follow(self, queue: int, sequence: int, report: Report, lost: Lost = nobody) -> Follower:
        """Report each later event of a message, when it is durable, up to its last; `lost` if the shard moves."""
        return self.executor.followers.add((queue, sequence), report, lost)

    def waiting(self, queue: str) -> int:
        return self.waiters.waiting(queue)

    def hindrance(self) -> Refused | None:
        return _unwritable(self.failure) if self.failure else None

    def waiting_commands(self) -> list[Waiting]:
        return [waiter.command for waiter in self.waiters.all()]

    def _queue_name(self, number: int) -> str | None:
        queue = self.executor.engine.queues.get(number)
        return queue.name if queue else self.executor.engine.name_of(number) or None

    # ── For services ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def engine(self) -> Engine:
        return self.executor.engine

    @property
    def recent(self) -> Recent:
        return self.executor.recent

    @property
    def tally(self) -> Tally:
        return self.executor.tally

    @property
    def log(self) -> Log:
        return self.commit.log

    @property
    def failure(self) -> str | None:
        return self.commit.failure

    def now(self) -> Nanos:
        return self.executor.now()

    def wall(self) -> Nanos:
        return self.executor.wall()

    def examine(self, position: Position) -> bool:
        return self.executor.damage.can_read(position)

    def report_damage(self, damage: DamagedExtentError) -> None:
        self.executor.damage.report(damage)

    def state(self) -> Iterator[tuple[str, Samples]]:
        """The writer, its engine and its log, as metrics."""
        engine, log = self.engine, self.log
        yield "penstock_healthy", one(not self.failure)
        yield "penstock_events_total", [((kind.name.lower(),), self.events_by_kind[kind]) for kind in Kind]
        yield "penstock_commits_total", one(self.commit.count)
        yield "penstock_waiting_receives", one(self.waiters.count)
        yield "penstock_queues", one(len(engine.queues))
        yield "penstock_schedules", one(len(engine.schedules))
        yield "penstock_names", one(len(engine.names))
        yield "penstock_names_max", one(engine.names.most)
        yield "penstock_staged_bytes", one(engine.staging.bytes)
        yield "penstock_idempotency_keys", one(len(engine.answered.by_key))
        yield "penstock_log_bytes", one(log.end.position - log.start.position)
        yield "penstock_log_segments", one(len(log.view().parts))
        yield "penstock_log_offset", one(log.end.offset)
        yield "penstock_log_collecting_bytes", one(log.collecting)

    # ── For the broker ──────────────────────────────────────────────────────────────────────────────────────

    @property
    def idle(self) -> bool:
        """Whether nothing waits for the disk."""
        return self.commit.is_idle

    def release_waiters(self) -> None:
        """Answer everyone who waits, now, with what there is: the broker stops."""
        self.decide_collected()
        for waiter in self.waiters.all():
            self._waking.give_up(waiter)
        refusal = Refused(Reason.UNAVAILABLE, "the broker is stopping")
        give([(reply, refusal) for reply in self._waking.fetches.take() + self._waking.take_crowded()])

    def dismiss(self) -> None:
        """Wake everyone who watches a queue, and end following messages: they are served elsewhere from now on, and
        whoever is interested looks there."""
        self.waiters.workers.dismiss_watches()
        self.executor.followers.dismiss_all()

    def fail(self, error: BaseException) -> None:
        """The log cannot be written: refuse all waiting and new commands until there is a new log. What was in flight
        waits until the log is read again, because it may be in there."""
        reason = str(error)
        logger.critical("log_failed", extra={"reason": reason})
        never, doubt = self.commit.abandon(reason)
        refused = [reply for reply, _ in never]
        for entries in self._collected.values():
            refused += [reply for _, reply, _, waiter in entries if not (waiter and waiter.canceled)]
        self._collected.clear()
        refused += self._waking.fetches.take() + self._waking.take_crowded()
        for waiter in self.waiters.all():
            self._waking.forget(waiter)
            refused.append(waiter.reply)
        if isinstance(error, FencedError):
            refused += [reply for reply, _ in doubt.held]  # The store has not taken it, and never will.
        else:
            self._doubts.add(doubt, self.doubt_ns, self.end_doubt)
        refusal = _unwritable(reason)
        give([(reply, refusal) for reply in refused])
        self.on_failure(error)

    def settle_doubt(self, end: int) -> None:
        """Others have the log now. It went up to this offset before."""
        self._doubts.resolve(end, _unwritable("others have it now"))

    def end_doubt(self) -> None:
        """It takes too long to read the log again, or nobody knows what is in it."""
        self._doubts.end(Refused(Reason.OUTCOME_UNKNOWN, f"the log cannot be written: {self.failure}"))

    def revive(self, engine: Engine, log: Log) -> None:
        """Go on with what a new log has recovered."""
        assert self.failure
        self.executor.engine, self.commit.log, self.commit.failure = engine, log, None
        self._doubts.resolve(
            log.end.offset, _unwritable("what was under way is not in it")
        )  # First: those who follow a message must know whether it is there.
        self.executor.recent.clear()
        self.executor.followers.end_lost(engine.has_had, engine.time)
        self._arm()
        for queue in self.waiters.workers.watches:
            self.waiters.workers.wake(queue)  # A message may be ready there that did not wake them.
        self._waking.wake()

    def rearm(self) -> None:
        """Set all timers again: the clock does not run as they do."""
        self._arm()
        self.waiters.receivers.rearm()

    def _arm(self) -> None:
        self._deadline.set(self.engine.next_deadline)
        self._calendar.set(self.engine.schedules.next_due)

    def _on_deadline(self) -> None:
        if not self.failure:
            self._waking.pass_time()

    def _on_calendar(self) -> None:
        if not self.failure:
            self._waking.run_schedules()


def _unwritable(reason: str) -> Refused:
    return Refused(Reason.UNAVAILABLE, f"the log cannot be written: {reason}")


def _nobody(_: Client, query: Query, reply: Reply) -> None:
    reply(Refused(Reason.UNAVAILABLE, f"nobody answers {type(query).__name__} here"))
