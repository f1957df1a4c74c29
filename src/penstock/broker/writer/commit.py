"""Group commit: what one turn decides is one batch, and every answer waits until the batch it depends on is durable.

When a turn of the event loop ends and no round of commits is under way (`rounds.py`), the batch is committed, and the
next one collects. An answer is given when the batch that collected at its decision has reached the stage that the
client asked for. That includes answers that logged nothing: they may depend on something that is not on the disk yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock.broker.room import Room
from penstock.broker.writer.port import Reply
from penstock.broker.writer.rounds import Rounds
from penstock.broker.writer.scheduler import Scheduler
from penstock.limits import SECOND_NS
from penstock.model.client import Cancelable
from penstock.model.values import Nanos, Stage
from penstock.storage.port import Log

logger = logging.getLogger(__name__)

Held = list[tuple[Reply, Any]]  # Answers that are not given yet.

_READY, _SYNC = Stage.READY, Stage.SYNC  # Looking a member up in an enum is not free on the hottest path.


class Doubt(NamedTuple):
    """Answers that are true if the log goes as far as this offset when it is read again."""

    ends_at: int
    held: Held


class Doubts:
    """What was in flight to a log that failed, until the log is read again."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._doubts: list[Doubt] = []
        self._scheduler = scheduler
        self._timer: Cancelable | None = None

    def add(self, doubt: Doubt, patience_ns: Nanos, too_late: Callable[[], None]) -> None:
        self._stop_timer()
        self._doubts.append(doubt)
        self._timer = self._scheduler.after(patience_ns, too_late)

    def end(self, unknown: Any) -> None:
        """Answer that nobody knows."""
        doubts = self._take()
        give([(reply, unknown) for doubt in doubts for reply, _ in doubt.held])

    def resolve(self, end: int, refusal: Any) -> None:
        """The log was read again, up to this offset: what is in it was done, and nothing else."""
        for doubt in self._take():
            give([(reply, answer if doubt.ends_at <= end else refusal) for reply, answer in doubt.held])

    def _take(self) -> list[Doubt]:
        self._stop_timer()
        doubts, self._doubts = self._doubts, []
        return doubts

    def _stop_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None


class GroupCommit:
    def __init__(
        self,
        log: Log,
        clock: Callable[[], Nanos],
        scheduler: Scheduler,
        collected: Mapping[Any, Any],
        rounds: Rounds,
        room: Room,
    ) -> None:
        """`collected`: the commands that are not decided yet. `rounds`: those of all shards of the process. `room`:
        for the answers that are held."""
        self.log = log
        self.failure: str | None = None  # Why the log cannot be written.
        self.collecting = False  # Something was appended since the last commit began.
        self.in_flight: dict[Stage, Held] | None = None  # Answers that wait for the current commit.
        self.held_for_sync: Held = []  # Answers that wait for the batch that collects.
        self.flush_is_due = False
        self.count = 0
        self.on_commit: list[Callable[[], None]] = []
        self.on_failure: Callable[[BaseException], None] = lambda _: None
        self.on_seconds: Callable[[float], None] = lambda _: None  # Called with how long each commit took.
        self.decide_collected: Callable[[], None] = lambda: None  # Called before each commit.
        self.note_outcomes: Callable[[], None] | None = None  # Called then too, if other processes ask.
        self._given: Held = []  # Answers of the batch that collects that were given already, if other processes ask.
        self._held_for_write: Held = []
        self._room = room
        self._promised = 0  # Bytes in answers that wait for the batch that collects,
        self._promised_in_flight = 0  # and in those that wait for the current commit.
        self._began: Nanos = 0
        self._ends_at = 0  # The offset after the batch in flight.
        self._clock = clock
        self._scheduler = scheduler
        self._collected = collected
        self.rounds = rounds
        rounds.members.append(self)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for the disk."""
        return self.in_flight is None and not self.collecting and not self._collected

    def leave(self) -> None:
        """The log is closed, and others of the process go on."""
        self.rounds.leave(self)

    def hold(self, reply: Reply, answer: Any, stage: Stage) -> None:
        """Give an answer when what is collecting now, or else what is in flight, has reached the stage."""
        if self.collecting and stage is _SYNC:
            self.held_for_sync.append((reply, answer))
        elif stage is _READY:
            if self.collecting and self.note_outcomes:
                self._given.append((reply, answer))
            give([(reply, answer)])
        elif self.collecting:
            self._held_for_write.append((reply, answer))
        elif self.in_flight is not None:
            self.in_flight[stage].append((reply, answer))
        else:
            reply(answer)

    def promise(self, size: int) -> None:
        """An answer with so many bytes is held from now on, until what it waits for is durable."""
        self._room.promise(size)
        if self.collecting:
            self._promised += size
        elif self.in_flight is not None:
            self._promised_in_flight += size
        else:
            self._redeem(size)

    def _redeem(self, size: int) -> None:
        """Answers are given: in the next turn it is known what of them the clients did not take at once."""
        if size:
            self._scheduler.soon(partial(self._room.redeem, size))

    def hold_all(self, entries: Sequence[tuple[Any, Reply, Stage, Any]], answers: Sequence[Any]) -> None:
        """Give each collected command its answer."""
        held, collecting = self.held_for_sync, self.collecting
        for (_, reply, stage, _), answer in zip(entries, answers, strict=True):
            if collecting and stage is _SYNC:
                held.append((reply, answer))
            else:
                self.hold(reply, answer, stage)

    def flush_soon(self) -> None:
        """When this turn has ended: decide what was collected, and commit it, unless a round is under way then."""
        self.flush_is_due = True
        self.rounds.flush_soon()

    def decided(self) -> tuple[Held, ...]:
        """The answers that were decided since the last commit began."""
        return self.held_for_sync, self._held_for_write, self._given

    def take_held(self) -> dict[Stage, Held]:
        """The answers that wait for the batch that collects; another batch begins."""
        held = {Stage.WRITE: self._held_for_write, Stage.SYNC: self.held_for_sync}
        self._held_for_write, self.held_for_sync, self._given = [], [], []
        self.collecting = False
        return held

    def decide(self) -> None:
        self.flush_is_due = True
        try:
            if not self.failure:
                self.decide_collected()
        finally:
            self.flush_is_due = False  # Only now: what is decided here is committed here.
        if self._collected:
            self.flush_soon()  # Those who were answered have submitted more.

    def begin(self) -> bool:
        if self.failure or not self.collecting:
            return False
        assert self.in_flight is None, "one commit at a time"
        if self.note_outcomes:
            self._note_outcomes(self.note_outcomes)
        self.in_flight = self.take_held()
        self._promised_in_flight, self._promised = self._promised, 0
        self._ends_at = self.log.appended.offset
        self._began = self._clock()
        self.count += 1
        self.log.commit(self._began, self._progress)
        return True

    def _note_outcomes(self, note: Callable[[], None]) -> None:
        self.flush_is_due = True  # What is noted belongs to this batch, and asks for no other.
        try:
            note()
        finally:
            self.flush_is_due = False

    def _progress(self, stage: Stage | BaseException) -> None:
        """Called by the log, from its own thread."""
        if isinstance(stage, BaseException):
            failure = stage
            self._scheduler.from_thread(lambda: self.on_failure(failure))
        elif stage is Stage.SYNC:
            self._scheduler.from_thread(self._synced)
        elif self.in_flight and self.in_flight[Stage.WRITE]:
            self._scheduler.from_thread(self._written)

    def _written(self) -> None:
        if self.in_flight:
            answered, self.in_flight[Stage.WRITE] = self.in_flight[Stage.WRITE], []
            give(answered)

    def _synced(self) -> None:
        if self.in_flight is None:
            return  # The log has failed in the meantime.
        done, self.in_flight = self.in_flight, None
        self.on_seconds((self._clock() - self._began) / SECOND_NS)
        self.rounds.ended(self)
        size, self._promised_in_flight = self._promised_in_flight, 0
        give(done[Stage.WRITE])
        give(done[Stage.SYNC])
        self._redeem(size)
        for callback in self.on_commit:
            callback()

    def abandon(self, reason: str) -> tuple[Held, Doubt]:
        """The log has failed. The answers that will never be true, and those of which that is not known: they were
        in flight. Nothing is held any more."""
        self.failure = reason
        doubt = Doubt(self._ends_at, [each for held in (self.in_flight or {}).values() for each in held])
        self.in_flight = None
        never = [each for held in self.take_held().values() for each in held]
        self._redeem(self._promised_in_flight + self._promised)
        self._promised_in_flight = self._promised = 0
        self.rounds.ended(self)
        return never, doubt


def give(answered: Held) -> None:
    """Call everyone, even if one of the calls fails. Nothing is kept of what was given: answers may be large."""
    answered.reverse()
    while answered:
        reply, answer = answered.pop()
        try:
            reply(answer)
        except Exception:
            logger.exception("reply_failed")
