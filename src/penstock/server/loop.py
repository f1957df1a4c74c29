"""The single writer: every command passes here, and every answer waits here until what it saw is durable.

Commands that arrive in one turn of the event loop share a batch. When the turn ends and no commit is under way, the
batch is committed; while it is, the next one collects. An answer is given when the batch that was collecting at its
decision has reached the stage the client asked for: also an answer that logged nothing, since it may tell of
something that is not yet on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol, cast

from penstock.engine.engine import Engine
from penstock.errors import DamagedLogError, Reason
from penstock.limits import BATCH_BYTES_MAX, NEVER_NS, RUN_MESSAGES_MAX, SECOND_NS
from penstock.model import (
    Answer,
    Command,
    DeadLettered,
    Decision,
    Delivery,
    Event,
    Fetch,
    Kind,
    LoggedRun,
    Nanos,
    Publish,
    Refused,
    Tick,
)
from penstock.storage.port import Log, Stage

logger = logging.getLogger(__name__)

Reply = Callable[[Answer], None]

_TICK = Tick()
_READY, _SYNC = Stage.READY, Stage.SYNC  # Looking a member up in an enum is not free on the hottest path.


class Timer(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The event loop, or a simulated one."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call when this turn has ended."""

    def from_thread(self, callback: Callable[[], None]) -> None:
        """Call in the loop's thread, whichever thread asks."""

    def after(self, delay_ns: Nanos, callback: Callable[[], None]) -> Timer:
        """Call when this long has passed."""


class Waiter:
    """A client that waits for a message. `cancel` when it has gone away."""

    __slots__ = ("_loop", "command", "number", "reply", "timer")

    def __init__(self, loop: Loop, number: int, command: Fetch, reply: Reply) -> None:
        self._loop = loop
        self.number = number
        self.command = command
        self.reply = reply
        self.timer: Timer | None = None

    def cancel(self) -> None:
        self._loop.forget(self)


class Loop:
    def __init__(self, engine: Engine, log: Log, clock: Callable[[], Nanos], scheduler: Scheduler) -> None:
        self.engine = engine
        self.log = log
        self.failure: str | None = None
        self.on_failure: Callable[[BaseException], None] = lambda _: None
        self.on_commit: Callable[[], None] = lambda: None
        self.on_commit_seconds: Callable[[float], None] = lambda _: None
        self.events_by_kind = [0] * (max(Kind) + 1)
        self.commits = 0
        self.waiting = 0
        self._clock = clock
        self._scheduler = scheduler
        self._publishes: list[tuple[Publish, Reply]] = []  # Not decided yet.
        self._held_for_write: list[tuple[Reply, Answer]] = []
        self._held_for_sync: list[tuple[Reply, Answer]] = []
        self._in_flight: dict[Stage, list[tuple[Reply, Answer]]] | None = None
        self._collecting = False  # Something was appended since the last commit began.
        self._commit_began: Nanos = 0
        self._flush_is_due = False
        self._waiters: dict[int, dict[Waiter, None]] = {}  # By queue number, first come first served.
        self._woken: list[int] = []
        self._timer: Timer | None = None
        self._timer_at: Nanos = NEVER_NS
        self._arm()

    # ── Commands ────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, command: Command, reply: Reply, stage: Stage = _SYNC) -> Waiter | None:
        """Decide and apply a command; `reply` is called with the answer once it is as durable as asked."""
        if self.failure or (self._in_flight is not None and self.log.collecting > BATCH_BYTES_MAX):
            reply(Refused(Reason.UNAVAILABLE, self.failure or "the disk does not keep up"))
            return None
        if type(command) is Publish and stage is _SYNC:
            self._collect(command, reply)
            return None
        if self._publishes:
            self._publish_collected()
        return self._carry_out(command, reply, stage)

    def _carry_out(self, command: Command, reply: Reply, stage: Stage) -> Waiter | None:
        engine = self.engine
        now = self._clock()
        if now <= engine.time:
            now = engine.time + 1
        if engine.next_deadline <= now:
            self._settle()
            now = self.now()
        decision = engine.decide(command, now)
        if type(command) is Fetch and decision.events:
            decision = self._loaded(decision)
        if decision.events:
            self._apply(decision)
        elif not decision.answer and type(command) is Fetch and command.wait_ns:
            return self._wait(command, reply)
        if self._collecting and stage is _SYNC:
            self._held_for_sync.append((reply, decision.answer))
        else:
            self._hold(reply, decision.answer, stage)
        if self._woken:
            self._wake()
        return None

    # Publishes that come in one turn, or while a commit is under way, are decided together just before the next
    # commit, or before any other command: they could not be durable earlier, and together they cost much less.

    def _collect(self, command: Publish, reply: Reply) -> None:
        self._publishes.append((command, reply))
        if len(self._publishes) >= RUN_MESSAGES_MAX:
            self._publish_collected()
        elif self._in_flight is None and not self._flush_is_due:
            self._flush_is_due = True
            self._scheduler.soon(self._flush)

    def _publish_collected(self) -> None:
        publishes, self._publishes = self._publishes, []
        by_queue: dict[str, list[tuple[Publish, Reply]]] = {}
        for command, reply in publishes:
            by_queue.setdefault(command.queue, []).append((command, reply))
        for queue, together in by_queue.items():
            messages = [message for command, _ in together for message in command.messages]
            self._carry_out(Publish(queue, messages), _divided(together), _SYNC)

    def now(self) -> Nanos:
        """The time, later than every event so far."""
        now = self._clock()
        latest = self.engine.time
        return now if now > latest else latest + 1

    def _apply(self, decision: Decision) -> None:
        engine, append, counts = self.engine, self.log.append, self.events_by_kind
        for event in decision.events:
            engine.evolve(event, append(event))
            counts[event.kind] += len(event.bodies) if type(event) is LoggedRun else 1
            if self._waiters:
                self._note_woken(event)
        self._collecting = True
        if self._in_flight is None and not self._flush_is_due:
            self._flush_is_due = True
            self._scheduler.soon(self._flush)
        if engine.next_deadline < self._timer_at:
            self._arm()

    def _loaded(self, decision: Decision) -> Decision:
        """Read what is to be delivered. What cannot be read is not delivered, and not counted as delivered."""
        try:
            self._load(cast("Sequence[Delivery]", decision.answer))
        except DamagedLogError as error:
            logger.critical("message_damaged", extra={"reason": str(error)})
            return Decision((), Refused(Reason.DAMAGED, str(error)))
        return decision

    def _load(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            body, key = delivery.body_bytes, delivery.key_bytes
            extent = self.log.read(delivery.position, body + key + delivery.headers_bytes)
            if len(extent) == body:
                delivery.body = extent
            else:
                delivery.body, delivery.key = extent[:body], extent[body : body + key]
                delivery.headers = extent[body + key :]

    def _hold(self, reply: Reply, answer: Answer, stage: Stage) -> None:
        """Give an answer when what is collecting now, or else what is in flight, has reached the stage."""
        if stage is _READY:
            reply(answer)
        elif self._collecting:
            (self._held_for_sync if stage is _SYNC else self._held_for_write).append((reply, answer))
        elif self._in_flight is not None:
            self._in_flight[stage].append((reply, answer))
        else:
            reply(answer)

    # ── Group commit ────────────────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._in_flight is not None or self.failure:
            return
        if self._publishes:
            self._publish_collected()
        if not self._collecting:
            return
        self._in_flight = self._take_held()
        self._commit_began = self._clock()
        self.commits += 1
        self.log.commit(self._commit_began, self._progress)

    def _take_held(self) -> dict[Stage, list[tuple[Reply, Answer]]]:
        held = {Stage.WRITE: self._held_for_write, Stage.SYNC: self._held_for_sync}
        self._held_for_write, self._held_for_sync = [], []
        self._collecting = False
        return held

    def _progress(self, stage: Stage | BaseException) -> None:
        """Called by the log, from its own thread."""
        if isinstance(stage, BaseException):
            failure = stage
            self._scheduler.from_thread(lambda: self._fail(failure))
        elif stage is Stage.SYNC:
            self._scheduler.from_thread(self._synced)
        elif self._in_flight and self._in_flight[Stage.WRITE]:
            self._scheduler.from_thread(self._written)

    def _written(self) -> None:
        if self._in_flight:
            answered, self._in_flight[Stage.WRITE] = self._in_flight[Stage.WRITE], []
            _give(answered)

    def _synced(self) -> None:
        if self._in_flight is None:
            return  # Failed, and forgotten, in the meantime.
        done, self._in_flight = self._in_flight, None
        self.on_commit_seconds((self._clock() - self._commit_began) / SECOND_NS)
        if (self._collecting or self._publishes) and not self._flush_is_due:
            # When this turn ends, so that what the answered clients send next can still join the batch.
            self._flush_is_due = True
            self._scheduler.soon(self._flush)
        _give(done[Stage.WRITE])
        _give(done[Stage.SYNC])
        self.on_commit()

    def _fail(self, error: BaseException) -> None:
        """The log cannot be written. Whoever waits is told; nothing more is accepted until a new log is there."""
        self.failure = str(error)
        logger.critical("log_failed", extra={"reason": str(error)})
        refusal = Refused(Reason.UNAVAILABLE, self.failure)
        undecided: list[tuple[Reply, Answer]] = [(reply, refusal) for _, reply in self._publishes]
        held = [self._in_flight or {}, self._take_held(), {_SYNC: undecided}]
        self._in_flight = None
        self._publishes = []
        waiters = [waiter for waiters in self._waiters.values() for waiter in waiters]
        for waiter in waiters:
            self.forget(waiter)
        for replies in held:
            _give([(reply, refusal) for answered in replies.values() for reply, _ in answered])
        _give([(waiter.reply, refusal) for waiter in waiters])
        self.on_failure(error)

    def revive(self, engine: Engine, log: Log) -> None:
        """Go on with what a new log has recovered."""
        assert self.failure
        self.engine, self.log, self.failure = engine, log, None
        self._timer_at = NEVER_NS
        self._arm()

    @property
    def idle(self) -> bool:
        """Nothing waits for the disk."""
        return self._in_flight is None and not self._collecting and not self._publishes

    # ── Waiting clients ─────────────────────────────────────────────────────────────────────────────────────

    def _wait(self, command: Fetch, reply: Reply) -> Waiter:
        number = self.engine.numbers[command.queue]
        waiter = Waiter(self, number, command, reply)
        self._waiters.setdefault(number, {})[waiter] = None
        self.waiting += 1
        waiter.timer = self._scheduler.after(command.wait_ns, lambda: self._give_up(waiter))
        return waiter

    def _give_up(self, waiter: Waiter) -> None:
        if waiter.timer:
            self.forget(waiter)
            self._hold(waiter.reply, (), Stage.SYNC)

    def forget(self, waiter: Waiter) -> None:
        if waiter.timer is None:
            return  # Answered, or given up.
        waiter.timer.cancel()
        waiter.timer = None
        self.waiting -= 1
        waiters = self._waiters[waiter.number]
        del waiters[waiter]
        if not waiters:
            del self._waiters[waiter.number]

    def release_waiters(self) -> None:
        """Answer everyone who waits, now, with what there is: the broker stops."""
        for waiter in [waiter for waiters in self._waiters.values() for waiter in waiters]:
            self._give_up(waiter)

    def _note_woken(self, event: Event) -> None:
        kind = event.kind
        if kind is Kind.DEAD_LETTERED:
            assert isinstance(event, DeadLettered)
            number = event.to_queue
        elif kind in (Kind.LOGGED, Kind.RETRIED, Kind.QUEUE_REMOVED):
            number = event.queue  # type: ignore[attr-defined]
        else:
            return
        if number in self._waiters:
            self._woken.append(number)

    def _wake(self) -> None:
        """Hand what has become ready to those who wait for it."""
        while self._woken:
            number = self._woken.pop()
            while waiters := self._waiters.get(number):
                waiter = next(iter(waiters))
                decision = self.engine.decide(waiter.command, self.now())
                if not decision.answer:
                    break
                self.forget(waiter)
                if decision.events:
                    decision = self._loaded(decision)
                if decision.events:
                    self._apply(decision)
                self._hold(waiter.reply, decision.answer, _SYNC)

    # ── Deadlines ───────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        at = self.engine.next_deadline
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at != NEVER_NS:
            self._timer = self._scheduler.after(max(0, at - self._clock()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._timer_at = NEVER_NS
        if not self.failure:
            self._settle()

    def _settle(self) -> None:
        """Leases and lifetimes that ran out, and delays that are over."""
        now = self.now()
        decision = self.engine.decide(_TICK, now)
        if decision.events:
            self._apply(decision)
        for number in self.engine.advance(now):
            if number in self._waiters:
                self._woken.append(number)
        self._wake()
        self._arm()


def _divided(together: list[tuple[Publish, Reply]]) -> Reply:
    """One reply for publishes that were decided together: each gets its own part of the answer."""
    if len(together) == 1:
        return together[0][1]

    def reply_to_all(answer: Answer) -> None:
        answers: list[tuple[Reply, Answer]] = []
        start = 0
        for command, reply in together:
            stop = start + len(command.messages)
            answers.append((reply, answer if isinstance(answer, Refused) else answer[start:stop]))  # type: ignore[index]
            start = stop
        _give(answers)

    return reply_to_all


def _give(answered: list[tuple[Reply, Answer]]) -> None:
    """Answer everyone, whatever becomes of one of them."""
    for reply, answer in answered:
        try:
            reply(answer)
        except Exception:
            logger.exception("reply_failed")
