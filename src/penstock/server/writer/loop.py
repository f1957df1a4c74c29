"""The single writer: every command passes here, and every answer waits here until what it saw is durable.

Publishes, fetches and finishes that come in one turn of the event loop, or while a commit is under way, are collected
and decided together just before the next commit, or before any other command: they could not be durable earlier, and
together they cost much less. What one turn decides shares a batch. When the turn ends and no commit is under way, the
batch is committed; while it is, the next one collects.

An answer is given when the batch that was collecting at its decision has reached the stage the client asked for: also
an answer that logged nothing, since it may tell of something that is not yet on the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from penstock.dialects.wire.conversation import Cancelable
from penstock.engine.engine import Engine
from penstock.errors import DamagedExtentError, HistoryError, Reason
from penstock.limits import BATCH_BYTES_MAX, NEVER_NS, RUN_MESSAGES_MAX, SECOND_NS, WAKES_MAX
from penstock.model.answers import (
    Answer,
    Decision,
    Delivery,
    Done,
    Published,
    Pulled,
    Receipt,
    Received,
    Refused,
    Settled,
)
from penstock.model.commands import (
    AwaitResult,
    Command,
    Fetch,
    Finish,
    FinishMany,
    Publish,
    PublishInTurn,
    PublishTopics,
    Pull,
    ReadClaimed,
    Receive,
    SetAside,
    Settle,
    SettleMany,
    Tick,
    Waiting,
)
from penstock.model.events import (
    Event,
    MessageEvent,
    MessageRun,
    QueueChanged,
    QueueCreated,
    QueuedRun,
    QueueRemoved,
)
from penstock.model.kinds import MOVES, Kind, kinds_where
from penstock.model.values import Key, Nanos, Position, Stage
from penstock.server.writer.followers import Follower, Followers
from penstock.server.writer.loading import first_in, load
from penstock.server.writer.port import Reply
from penstock.server.writer.scheduler import Scheduler
from penstock.storage.port import Log

logger = logging.getLogger(__name__)

_TICK = Tick()
_DONE = Done()
_READY, _SYNC = Stage.READY, Stage.SYNC  # Looking a member up in an enum is not free on the hottest path.
# A message may be ready in its queue. A run of queued messages has several queues, and is looked at on its own.
_WAKES = kinds_where(lambda row: row.wakes and not row.moves) - {Kind.QUEUED}
_FIRST_OF_MESSAGES = int(Kind.LOGGED)
_OF_QUEUES = (QueueCreated, QueueChanged, QueueRemoved)
# Receivers wait for the time at which something is due again.
_DUE_AGAIN = kinds_where(lambda row: row.whose != "workers" and "visible_at" in row.stores)
_CLEARS_THE_WAY = kinds_where(lambda row: row.clears)
_DAMAGES_MAX = 100  # Damaged parts of the log that one command goes on after.


class Waiter:
    """A client that waits for something. `cancel` when it has gone away, be it before it began to wait; `give_up` if
    it may have."""

    __slots__ = ("_loop", "canceled", "command", "patient", "reply", "stage", "timer")

    def __init__(self, loop: Loop, command: Waiting, reply: Reply, stage: Stage) -> None:
        self._loop = loop
        self.command = command
        self.reply = reply
        self.stage = stage
        self.timer: Cancelable | None = None
        self.canceled = False
        self.patient = True

    @property
    def is_waiting(self) -> bool:
        """False when it is answered, or about to be, or not decided yet."""
        return self.timer is not None

    def cancel(self) -> None:
        self.canceled = True
        self._loop.forget(self)

    def give_up(self) -> None:
        """Be answered with what there is: at once, or as soon as it is decided."""
        self.patient = False
        self._loop.give_up(self)


class Watch:
    """A client that wants to know, once, when a queue has a message. `cancel` when it no longer does."""

    __slots__ = ("_loop", "queue", "wake")

    def __init__(self, loop: Loop, queue: str, wake: Callable[[], None]) -> None:
        self._loop = loop
        self.queue = queue
        self.wake: Callable[[], None] | None = wake

    def cancel(self) -> None:
        self.wake = None
        self._loop.forget_watch(self)

    def told(self, answer: Answer) -> None:
        """What woke it is durable, or never will be: then it sleeps on."""
        if self.wake and isinstance(answer, Refused):
            self._loop.watch_on(self)
        elif self.wake:
            self.wake()


class Loop:
    def __init__(self, engine: Engine, log: Log, clock: Callable[[], Nanos], scheduler: Scheduler) -> None:
        self.engine = engine
        self.log = log
        self.failure: str | None = None
        self.on_failure: Callable[[BaseException], None] = lambda _: None
        self.on_commit: list[Callable[[], None]] = []
        self.on_queue: list[Callable[[int], None]] = []
        self.on_damage: list[Callable[[DamagedExtentError], None]] = []
        self.on_commit_seconds: Callable[[float], None] = lambda _: None
        self.events_by_kind = [0] * (max(Kind) + 1)
        self.commits = 0
        self.waiters = 0
        self._clock = clock
        self._scheduler = scheduler
        # Not decided yet.
        self._finishes: list[tuple[Finish, Reply, Stage]] = []
        self._publishes: list[tuple[Publish, Reply, Stage]] = []
        self._settles: list[tuple[Settle, Reply, Stage]] = []
        self._topic_publishes: list[tuple[PublishTopics, Reply, Stage]] = []
        self._fetches: list[tuple[Fetch, Reply, Stage, Waiter | None]] = []
        self._held_for_write: list[tuple[Reply, Any]] = []
        self._held_for_sync: list[tuple[Reply, Any]] = []
        self._in_flight: dict[Stage, list[tuple[Reply, Any]]] | None = None
        self._collecting = False  # Something was appended since the last commit began.
        self._commit_began: Nanos = 0
        self._flush_is_due = False
        self._waiters: dict[Key, dict[Waiter, None]] = {}  # By what they wait for, first come first served.
        self._receivers: dict[str, dict[Key, None]] = {}  # By queue: the keys of those who wait to receive from it.
        self._starts: dict[Key, dict[Key, None]] = {}  # By queue and receiver: the keys with a start of their own.
        self._retries: dict[Key, tuple[Nanos, Cancelable]] = {}  # When a waiting receiver gets something again.
        self._watches: dict[str, dict[Watch, None]] = {}
        self._woken: list[Key] = []
        self._wake_is_due = False
        self._followers = Followers()
        self._timer: Cancelable | None = None
        self._timer_at: Nanos = NEVER_NS
        self._arm()

    # ── Commands ────────────────────────────────────────────────────────────────────────────────────────────

    def submit(self, command: Command, reply: Reply, stage: Stage = _SYNC) -> Waiter | None:
        """Decide and apply a command; `reply` is called with the answer once it is as durable as asked. What is
        returned is a client that may have to wait: cancelled, it is not answered."""
        if self.failure or (self._in_flight is not None and self.log.collecting > BATCH_BYTES_MAX):
            reply(Refused(Reason.UNAVAILABLE, self.failure or "the disk does not keep up"))
            return None
        waiter: Waiter | None = None
        if type(command) is Publish:
            if command.fleeting and command.queue in self._waiters:
                self.decide_collected()
                if self._hand_over(command, reply):
                    return None
            self._publishes.append((command, reply, stage))
            many = len(self._publishes) >= RUN_MESSAGES_MAX
        elif type(command) is Finish:
            self._finishes.append((command, reply, stage))
            many = len(self._finishes) >= RUN_MESSAGES_MAX
        elif type(command) is Fetch:
            waiter = Waiter(self, command, reply, stage) if command.wait_ns else None
            self._fetches.append((command, reply, stage, waiter))
            many = len(self._fetches) >= RUN_MESSAGES_MAX
        elif type(command) is PublishTopics:
            self._topic_publishes.append((command, reply, stage))
            many = len(self._topic_publishes) >= RUN_MESSAGES_MAX
        elif type(command) is Settle:
            self._settles.append((command, reply, stage))
            many = len(self._settles) >= RUN_MESSAGES_MAX
        else:
            self.decide_collected()
            if type(command) in _MAY_WAIT:
                waits = cast("Waiting", command)
                waiter = Waiter(self, waits, reply, stage) if waits.wait_ns else None
            self._answer_or_wait(command, reply, stage, waiter)
            if type(command) is Pull:
                self._note_moved_ahead(command)
            self._wake()
            return waiter
        if many:
            self.decide_collected()
        elif not self._flush_is_due and (self._in_flight is None or stage is not _SYNC):
            self._flush_is_due = True
            self._scheduler.soon(self._flush)
        return waiter

    def _carry_out(self, command: Command) -> Answer:
        """Decide and apply; the answer, which is not to be given yet."""
        if self.engine.next_deadline <= self.now():
            self._settle()
        if type(command) is PublishInTurn:
            return self._published_in_turn(command)
        return self._decided(command)

    def _published_in_turn(self, command: PublishInTurn) -> Answer:
        answers = []
        for publish in command.publishes:
            answers.append(self._decided(publish))
            if type(answers[-1]) is Refused:
                break
        return cast("Answer", answers)

    def _decided(self, command: Command) -> Answer:
        try:
            decision = self.engine.decide(command, self.now())
        except HistoryError as error:
            logger.critical("history_damaged", extra={"reason": str(error)})
            return Refused(Reason.DAMAGED, str(error))
        if type(command) in _READS and decision.answer:
            decision = self._loaded(command, decision)
        if decision.events:
            self._apply(decision)
        return decision.answer

    # ── Commands that are decided together ──────────────────────────────────────────────────────────────────
    # Finishes first and fetches last: so a client that does not wait for its answers never gets a message that it has
    # already finished, and gets what it has just published.

    def decide_collected(self) -> None:
        """Decide what has been collected. A client for which the order matters asks for it between two commands."""
        if self._finishes:
            finishes, self._finishes = self._finishes, []
            self._finish_together(finishes)
        if self._settles:
            settles, self._settles = self._settles, []
            self._settle_together(settles)
        if self._publishes:
            publishes, self._publishes = self._publishes, []
            self._publish_together(publishes)
        if self._topic_publishes:
            topic_publishes, self._topic_publishes = self._topic_publishes, []
            self._publish_topics_together(topic_publishes)
        if self._woken:
            self._wake()  # Those who wait were there before the fetches that have just come.
        if self._fetches:
            fetches, self._fetches = self._fetches, []
            self._fetch_together(fetches)
        if self._woken:
            self._wake()

    def _finish_together(self, finishes: list[tuple[Finish, Reply, Stage]]) -> None:
        if len(finishes) == 1:
            command, reply, stage = finishes[0]
            self._hold(reply, self._carry_out(command), stage)
            return
        answer = self._carry_out(FinishMany([command for command, _, _ in finishes]))
        answers = cast("Sequence[Done | Refused]", answer)
        self._hold_all(finishes, answers)

    def _settle_together(self, settles: list[tuple[Settle, Reply, Stage]]) -> None:
        answer = self._carry_out(SettleMany([command for command, _, _ in settles]))
        answers = cast("Sequence[Settled]", answer)
        self._hold_all(settles, answers)

    def _publish_topics_together(self, publishes: list[tuple[PublishTopics, Reply, Stage]]) -> None:
        for together in _grouped(publishes, lambda command: (command.queue, command.create)):
            first = together[0][0]
            messages = [message for command, _, _ in together for message in command.messages]
            answer = self._carry_out(PublishTopics(messages, first.create, first.queue))
            if len(together) > 1 and type(answer) is Refused:
                for command, reply, stage in together:  # What is refused together may still go one by one.
                    self._hold(reply, self._carry_out(command), stage)
            else:
                self._hold_all(together, _shared_out(together, answer))

    def _publish_together(self, publishes: list[tuple[Publish, Reply, Stage]]) -> None:
        for together in _grouped(publishes, lambda command: (command.queue, command.create)):
            first = together[0][0]
            if len(together) == 1:
                self._hold(together[0][1], self._carry_out(first), together[0][2])
                continue
            messages = [message for command, _, _ in together for message in command.messages]
            answer = self._carry_out(Publish(first.queue, messages, first.create))
            self._hold_all(together, _shared_out(together, answer))

    def _fetch_together(self, fetches: list[tuple[Fetch, Reply, Stage, Waiter | None]]) -> None:
        for together in _grouped(fetches, lambda f: (f.queue, f.lease_ns, f.consumer, f.confirm)):
            deliveries: Sequence[Delivery] = ()
            taken = 0
            first = together[0][0]
            if len(together) > 1:
                count = sum(command.count for command, _, _, _ in together)
                answer = self._carry_out(Fetch(first.queue, count, 0, first.lease_ns, first.consumer, first.confirm))
                if type(answer) is not Refused:
                    deliveries = cast("Sequence[Delivery]", answer)
            served: list[tuple[Fetch, Reply, Stage]] = []
            parts: list[Sequence[Delivery]] = []
            for command, reply, stage, waiter in together:
                part = deliveries[taken : taken + command.count]
                taken += command.count
                if part:
                    served.append((command, reply, stage))
                    parts.append(part)
                else:
                    self._fetch_alone(command, reply, stage, waiter)
            self._hold_all(served, parts)

    def _fetch_alone(self, command: Fetch, reply: Reply, stage: Stage, waiter: Waiter | None) -> None:
        if not (waiter and waiter.canceled):
            self._answer_or_wait(command, reply, stage, waiter)

    def _answer_or_wait(self, command: Command, reply: Reply, stage: Stage, waiter: Waiter | None) -> None:
        answer = self._carry_out(command)
        if waiter and waiter.patient and not answer:
            self._wait(waiter, answer)
        else:
            self._hold(reply, answer, stage)

    def now(self) -> Nanos:
        """The time, later than every event so far."""
        now = self._clock()
        latest = self.engine.time
        return now if now > latest else latest + 1

    def _apply(self, decision: Decision) -> None:
        engine, append, counts = self.engine, self.log.append, self.events_by_kind
        observed = self._waiters or self._watches or self._followers
        for event in decision.events:
            if observed:
                self._observe(event)
            engine.evolve(event, append(event))
            kind = event.kind
            counts[kind] += event.records
            if kind < _FIRST_OF_MESSAGES and isinstance(event, _OF_QUEUES):
                self._held_for_sync.append((self._tell_queue, event.queue))
        self._collecting = True
        if self._in_flight is None and not self._flush_is_due:
            self._flush_is_due = True
            self._scheduler.soon(self._flush)
        if engine.next_deadline < self._timer_at:
            self._arm()

    def _tell_queue(self, number: int | Refused) -> None:
        if not isinstance(number, Refused):
            for callback in self.on_queue:
                callback(number)

    def _loaded(self, command: Command, decision: Decision) -> Decision:
        """Read what is to be delivered. What cannot be read is set aside, and others are delivered in its place."""
        damages = 0
        while damage := self._load(decision.answer):
            damages += 1
            if damages > _DAMAGES_MAX or not self._set_aside(decision.answer, damage):
                return Decision((), Refused(Reason.DAMAGED, str(damage)))
            decision = self.engine.decide(command, self.now())
        return decision

    def _load(self, answer: Answer) -> DamagedExtentError | None:
        try:
            if answer:
                load(answer, self.log.read)
        except DamagedExtentError as error:
            return error
        return None

    def _set_aside(self, answer: Answer, damage: DamagedExtentError) -> bool:
        """Set aside the damaged messages of an answer, and those that follow them closely. False: there are none."""
        self.report_damage(damage)
        place = first_in(answer, damage.ranges)
        if place is None:
            return False
        queue, sequence = place
        found = self.engine.find(self.engine.numbers[queue] if isinstance(queue, str) else queue, sequence)
        if found is None:
            return False
        decision = self.engine.decide(SetAside(damage.ranges, (found[0].number, found[1] - 1)), self.now())
        if decision.events:
            self._apply(decision)
        return bool(decision.events)

    def examine(self, position: Position) -> bool:
        """Can this place in the log be read?"""
        try:
            self.log.read(position, 1)
        except DamagedExtentError as error:
            self.report_damage(error)
            return False
        return True

    def report_damage(self, damage: DamagedExtentError) -> None:
        for callback in self.on_damage:
            callback(damage)

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        """Call when everything decided so far has reached the stage. Not called if the log fails first."""
        self.reach(stage, lambda answer: None if isinstance(answer, Refused) else callback())

    def reach(self, stage: Stage, reply: Reply) -> None:
        """As `when`, but told in either case: `Done`, or `Refused` if the log fails first."""
        self._hold(reply, _DONE, stage)

    def _hold(self, reply: Reply, answer: Any, stage: Stage) -> None:
        """Give an answer when what is collecting now, or else what is in flight, has reached the stage."""
        if self._collecting and stage is _SYNC:
            self._held_for_sync.append((reply, answer))
        elif stage is _READY:
            _give([(reply, answer)])
        elif self._collecting:
            self._held_for_write.append((reply, answer))
        elif self._in_flight is not None:
            self._in_flight[stage].append((reply, answer))
        else:
            reply(answer)

    def _hold_all(self, commands: Sequence[tuple[Any, Reply, Stage]], answers: Sequence[Any]) -> None:
        held, collecting = self._held_for_sync, self._collecting
        for (_, reply, stage), answer in zip(commands, answers, strict=True):
            if collecting and stage is _SYNC:
                held.append((reply, answer))
            else:
                self._hold(reply, answer, stage)

    # ── Group commit ────────────────────────────────────────────────────────────────────────────────────────

    def _flush(self) -> None:
        self._flush_is_due = False
        if self.failure:
            return
        self.decide_collected()
        if self._in_flight is not None or not self._collecting:
            return
        self._in_flight = self._take_held()
        self._commit_began = self._clock()
        self.commits += 1
        self.log.commit(self._commit_began, self._progress)

    def _take_held(self) -> dict[Stage, list[tuple[Reply, Any]]]:
        held = {Stage.WRITE: self._held_for_write, Stage.SYNC: self._held_for_sync}
        self._held_for_write, self._held_for_sync = [], []
        self._collecting = False
        return held

    def _progress(self, stage: Stage | BaseException) -> None:
        """Called by the log, from its own thread."""
        if isinstance(stage, BaseException):
            failure = stage
            self._scheduler.from_thread(lambda: self.fail(failure))
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
        if not (self._flush_is_due or self.idle):
            # When this turn ends, so that what the answered clients send next can still join the batch.
            self._flush_is_due = True
            self._scheduler.soon(self._flush)
        _give(done[Stage.WRITE])
        _give(done[Stage.SYNC])
        for callback in self.on_commit:
            callback()

    def fail(self, error: BaseException) -> None:
        """The log cannot be written. Whoever waits is told; nothing more is accepted until a new log is there."""
        self.failure = str(error)
        logger.critical("log_failed", extra={"reason": str(error)})
        refusal = Refused(Reason.UNAVAILABLE, self.failure)
        undecided: list[tuple[Reply, Any]] = [(reply, refusal) for reply in self._undecided()]
        held = [self._in_flight or {}, self._take_held(), {_SYNC: undecided}]
        self._in_flight = None
        self._finishes, self._publishes, self._fetches = [], [], []
        self._settles, self._topic_publishes = [], []
        waiters = self._all_waiters()
        for waiter in waiters:
            self.forget(waiter)
        for replies in held:
            _give([(reply, refusal) for answered in replies.values() for reply, _ in answered])
        _give([(waiter.reply, refusal) for waiter in waiters])
        self.on_failure(error)

    def _undecided(self) -> Iterator[Reply]:
        for _, reply, _ in (*self._finishes, *self._settles, *self._publishes, *self._topic_publishes):
            yield reply
        for _, reply, _, waiter in self._fetches:
            if not (waiter and waiter.canceled):
                yield reply

    def revive(self, engine: Engine, log: Log) -> None:
        """Go on with what a new log has recovered."""
        assert self.failure
        self.engine, self.log, self.failure = engine, log, None
        self._timer_at = NEVER_NS
        self._arm()
        self._woken.extend(self._watches)  # Something may be ready there that they were not told of.
        self._wake()

    @property
    def idle(self) -> bool:
        """Nothing waits for the disk."""
        undecided = self._publishes or self._finishes or self._fetches or self._settles or self._topic_publishes
        return self._in_flight is None and not self._collecting and not undecided

    # ── Waiting clients ─────────────────────────────────────────────────────────────────────────────────────

    def waiting(self, queue: str) -> int:
        """How many clients wait for a message of this queue."""
        keys: list[Key] = [queue, *self._receivers.get(queue, ())]
        return sum([len(self._waiters.get(key, ())) for key in keys])

    def _wait(self, waiter: Waiter, answer: Answer) -> None:
        if type(waiter.command) is Pull:
            waiter.command = self.engine.waiting(waiter.command)
        command = waiter.command
        for key in command.waits_for:
            self._waiters.setdefault(key, {})[waiter] = None
            if type(command) is Pull or type(command) is Receive:
                self._receivers.setdefault(key[0], {})[key] = None
            if len(key) == 4 and type(key) is tuple:
                self._starts.setdefault((key[0], key[1]), {})[key] = None
        self.waiters += 1
        waiter.timer = self._scheduler.after(command.wait_ns, lambda: self.give_up(waiter))
        self._arm_retry(waiter, answer)

    def give_up(self, waiter: Waiter) -> None:
        if waiter.timer:
            # A fetch that found nothing has nothing to say; the others have.
            self._serve(waiter, () if type(waiter.command) is Fetch else self._decided(waiter.command))
            self._wake()

    def forget(self, waiter: Waiter) -> None:
        if waiter.timer is None:
            return  # Answered, given up, or not yet waiting.
        waiter.timer.cancel()
        waiter.timer = None
        self.waiters -= 1
        for key in waiter.command.waits_for:
            waiters = self._waiters[key]
            del waiters[waiter]
            if not waiters:
                del self._waiters[key]
                self._forget_receiver(key)

    def _forget_receiver(self, key: Key) -> None:
        """Nobody waits with this key any more."""
        retry = self._retries.pop(key, None)
        if retry:
            retry[1].cancel()
        keys = self._receivers.get(key[0]) if type(key) is tuple else None
        if keys and keys.pop(key, key) is None and not keys:
            del self._receivers[key[0]]
        if len(key) == 4 and type(key) is tuple:
            starts = self._starts[key[0], key[1]]
            del starts[key]
            if not starts:
                del self._starts[key[0], key[1]]

    def release_waiters(self) -> None:
        """Answer everyone who waits, now, with what there is: the broker stops."""
        self.decide_collected()
        for waiter in self._all_waiters():
            self.give_up(waiter)

    def _all_waiters(self) -> list[Waiter]:
        return list(dict.fromkeys(waiter for waiters in self._waiters.values() for waiter in waiters))

    # What a receiver has not answered for falls due by time alone. Only those who wait have to be told.

    def _arm_retry(self, waiter: Waiter, answer: Answer) -> None:
        if (type(answer) is Pulled or type(answer) is Received) and answer.due_at != NEVER_NS:
            for key in waiter.command.waits_for:
                self._arm_retry_at(key, answer.due_at)

    def _arm_retry_at(self, key: Key, due_at: Nanos) -> None:
        known = self._retries.get(key)
        if known and known[0] <= due_at:
            return
        if known:
            known[1].cancel()
        timer = self._scheduler.after(max(0, due_at - self._clock()), lambda: self._retry(key))
        self._retries[key] = (due_at, timer)

    def _retry(self, key: Key) -> None:
        """Something is due again: who of those that wait takes it?"""
        del self._retries[key]
        if not self.failure:
            self._offer_to_all(key)
            self._wake()

    def _offer_to_all(self, key: Key) -> None:
        """Where those who wait with one key do not all want the same."""
        for waiter in list(self._waiters.get(key, ())):
            if waiter.timer is None:
                continue  # It went away when another was answered.
            answer = self._decided(waiter.command)
            if answer:
                self._serve(waiter, answer)
            else:
                self._arm_retry(waiter, answer)

    def _serve(self, waiter: Waiter, answer: Answer) -> None:
        self.forget(waiter)
        self._hold(waiter.reply, answer, waiter.stage)
        if type(waiter.command) is Pull:
            self._note_moved_ahead(waiter.command)

    def _hand_over(self, command: Publish, reply: Reply) -> bool:
        """Give a message straight to a client that waits for one and confirms none: it is stored nowhere."""
        waiter = next(iter(self._waiters.get(command.queue, ())), None)
        if waiter is None or type(waiter.command) is not Fetch:
            return False
        if waiter.command.confirm or len(command.messages) != 1:
            return False
        (message,) = command.messages
        if message.delay_ns or command.queue not in self.engine.numbers:
            return False
        self.forget(waiter)
        number, now = self.engine.numbers[command.queue], self.now()
        sizes = len(message.body), len(message.key), len(message.headers)
        names = message.content_type, message.sender
        parts = message.body, message.key, message.headers
        delivery = Delivery(number, 0, 0, *sizes, *names, message.priority, 1, now, now, *parts)
        _give([(waiter.reply, [delivery]), (reply, [Receipt(number, 0, True)])])
        return True

    def watch(self, queue: str, wake: Callable[[], None]) -> Watch:
        """Call once when the queue, which need not be there yet, has a message that is ready; at once if it has."""
        self.decide_collected()
        watch = Watch(self, queue, wake)
        if self._has_ready(queue) and not self.failure:
            self._hold(watch.told, _DONE, _SYNC)
        else:
            self.watch_on(watch)
        return watch

    def watch_on(self, watch: Watch) -> None:
        self._watches.setdefault(watch.queue, {})[watch] = None

    def forget_watch(self, watch: Watch) -> None:
        watches = self._watches.get(watch.queue)
        if watches and watches.pop(watch, watch) is None and not watches:
            del self._watches[watch.queue]

    def follow(self, queue: int, sequence: int, tell: Callable[[Kind], None]) -> Follower:
        """Tell every event of a message from now to its end, each when it is durable."""
        return self._followers.add((queue, sequence), tell)

    def _observe(self, event: Event) -> None:
        """Look at an event that is about to be applied: who waits for it?"""
        kind = event.kind
        if kind in _WAKES:
            self._note_woken(event.queue)  # type: ignore[attr-defined]
        elif kind in MOVES:
            self._note_woken(event.to_queue)  # type: ignore[attr-defined]
        elif kind is Kind.QUEUED:
            for number in dict.fromkeys(event.queue if type(event) is QueuedRun else (event.queue,)):  # type: ignore[attr-defined]
                self._note_woken(number)
        elif kind is Kind.RESULT_STORED or kind in _DUE_AGAIN:
            self._observe_receiver(event)
        elif kind in _CLEARS_THE_WAY and isinstance(event, MessageEvent) and not event.receives:
            self._woken += self._receivers.get(self.engine.queues[event.queue].name, ())
        if self._followers:
            # The event is part of the batch that collects, or will be at once.
            self._held_for_sync += self._followers.concerned(event, self.engine.origins)

    def _note_moved_ahead(self, command: Pull) -> None:
        """A start may have led past the message that others of the same name stop before."""
        for draw in command.draws:
            if draw.start:
                self._woken += self._waiting_as((draw.queue, command.receiver))

    def _waiting_as(self, key: Key) -> list[Key]:
        """The keys of all who wait as this receiver of this queue, wherever they start."""
        return [each for each in (key, *self._starts.get(key, ())) if each in self._waiters]

    def _observe_receiver(self, event: Any) -> None:
        name = self.engine.queues[event.queue].name
        if event.kind is Kind.RESULT_STORED:
            key: Key = (name, event.sequence)
            if key in self._waiters:
                self._woken.append(key)
        elif name in self._receivers:
            receiver = event.consumer[0] if isinstance(event, MessageRun) else event.consumer
            key = (name, self.engine.names.texts[receiver])
            for each in self._waiting_as(key) if event.visible_at != NEVER_NS else ():
                self._arm_retry_at(each, event.visible_at)

    def _note_woken(self, number: int) -> None:
        name = self.engine.queues[number].name
        if name in self._waiters or name in self._watches:
            self._woken.append(name)
        self._woken += self._receivers.get(name, ())

    def _has_ready(self, queue: str) -> bool:
        found = self.engine.queue(queue)
        return found is not None and found.ready > 0

    def _wake(self) -> None:
        """Hand what has become ready to those who wait for it; wake those who only watch if some is left. A crowd is
        served over several turns, so that it stalls nobody else."""
        room = WAKES_MAX
        while self._woken and not self._wake_is_due:
            key = self._woken.pop()
            if type(key) is tuple and type(key[1]) is int:
                self._offer_to_all(key)  # A result, but of whom?
                continue
            while waiters := self._waiters.get(key):
                if not room:
                    self._woken.append(key)
                    self._wake_is_due = True
                    self._scheduler.soon(self._go_on_waking)
                    return
                room -= 1
                waiter = next(iter(waiters))
                answer = self._decided(waiter.command)
                if not answer:
                    self._arm_retry(waiter, answer)
                    break
                self._serve(waiter, answer)
            if type(key) is str and key in self._watches and self._has_ready(key):
                for watch in self._watches.pop(key):
                    self._hold(watch.told, _DONE, _SYNC)

    def _go_on_waking(self) -> None:
        self._wake_is_due = False
        if not self.failure:
            self._wake()

    # ── Deadlines ───────────────────────────────────────────────────────────────────────────────────────────

    def _arm(self) -> None:
        at = self.engine.next_deadline
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._timer_at = at
        if at != NEVER_NS:
            self._timer = self._scheduler.after(max(0, at - self._clock()), self._on_timer)

    def rearm(self) -> None:
        """The clock runs faster or slower than timers do: set them again."""
        self._arm()
        for key, (due_at, timer) in list(self._retries.items()):
            timer.cancel()
            del self._retries[key]
            self._arm_retry_at(key, due_at)

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
            self._note_woken(number)
        self._wake()
        self._arm()


_READS = frozenset((Fetch, Pull, Receive, AwaitResult, ReadClaimed))  # Their answers hold what is in the log.
_MAY_WAIT = frozenset((Pull, Receive, AwaitResult))  # As a fetch, which is collected.


def _grouped(collected: list[Any], alike: Callable[[Any], object]) -> list[list[Any]]:
    """Commands with what belongs to them, those that are alike together, in the order in which they came."""
    kinds = [alike(entry[0]) for entry in collected]
    if kinds.count(kinds[0]) == len(kinds):
        return [collected]
    groups: dict[object, list[Any]] = {}
    for kind, entry in zip(kinds, collected, strict=True):
        groups.setdefault(kind, []).append(entry)
    return list(groups.values())


def _shared_out(publishes: Sequence[tuple[Any, Reply, Stage]], answer: Answer) -> Sequence[Any]:
    """For each the part of the answer that is about its messages."""
    if type(answer) is Refused:
        return [answer] * len(publishes)
    receipts = cast("Sequence[Receipt | Published]", answer)
    parts = []
    start = 0
    for command, _, _ in publishes:
        stop = start + len(command.messages)
        parts.append(receipts[start:stop])
        start = stop
    return parts


def _give(answered: list[tuple[Reply, Any]]) -> None:
    """Answer everyone, whatever becomes of one of them."""
    for reply, answer in answered:
        try:
            reply(answer)
        except Exception:
            logger.exception("reply_failed")
