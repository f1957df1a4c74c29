"""Decides commands: the engine makes events, the log takes them, and the engine applies them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from msgspec.structs import replace

from penstock.broker.figures.tally import NOTED as TALLIED
from penstock.broker.figures.tally import Tally
from penstock.broker.room import NoRoomError, Room
from penstock.broker.writer.commit import GroupCommit
from penstock.broker.writer.damage import Damage
from penstock.broker.writer.followers import Followers
from penstock.broker.writer.recent import NOTED, Recent
from penstock.broker.writer.scheduler import Deadline
from penstock.broker.writer.waiters import Waiters
from penstock.engine.engine import Engine
from penstock.errors import HistoryError, Reason, StoreError
from penstock.limits import FETCH_BYTES_MAX
from penstock.model.answers import Answer, Refused
from penstock.model.commands import AwaitResult, Command, Fetch, Pull, ReadClaimed, Receive
from penstock.model.consuming import Consume
from penstock.model.events import Event
from penstock.model.kinds import Kind, kinds_where
from penstock.model.values import Nanos

logger = logging.getLogger(__name__)

_OBSERVED = kinds_where(lambda row: row.about in ("queue", "schedule", "token"))
READS = frozenset((Fetch, Pull, Receive, Consume, AwaitResult, ReadClaimed))  # Their answers hold what is in the log.
LIMITED = frozenset((Fetch, Pull, Receive, Consume))  # They say how large their answer may be.


class Executor:
    def __init__(
        self,
        engine: Engine,
        commit: GroupCommit,
        waiters: Waiters,
        clock: Callable[[], Nanos],
        wall: Callable[[], Nanos],
        deadline: Deadline,
        calendar: Deadline,
        room: Room,
    ) -> None:
        """`deadline` is kept at the time of the next lease, lifetime or delay that ends, by `clock`; `calendar` at
        that of the next schedule, by `wall`. `room`: for the answers."""
        self.engine = engine
        self.room = room
        self.followers = Followers()
        self.recent = Recent()
        self.tally = Tally()
        self.damage = Damage(self, commit)
        self.events_by_kind = [0] * (max(Kind) + 1)
        self.on_queue: list[Callable[[int], None]] = []
        self.on_token: list[Callable[[str], None]] = []
        self._commit = commit
        self._waiters = waiters
        self._clock = clock
        self.wall = wall
        self._deadline = deadline
        self._calendar = calendar

    def now(self) -> Nanos:
        """The time, later than that of every event so far."""
        now = self._clock()
        latest = self.engine.time
        return now if now > latest else latest + 1

    def read(self, command: Command, free: int) -> Answer:
        """Decide a command of a client whose answer may have messages; `free` is how much room there is for them.
        Raises `NoRoomError` if there is none."""
        if not free:
            raise NoRoomError
        if free < FETCH_BYTES_MAX and type(command) in LIMITED:
            command = replace(command, bytes_max=min(free, cast("Any", command).bytes_max))
        return self.decide(command, takes_room=True)

    def decide(self, command: Command, *, takes_room: bool = False) -> Answer:
        """Decide and apply; the answer, which is not to be given before the commit."""
        size = 0
        try:
            decision = self.engine.decide(command, self.now(), self.wall())
        except HistoryError as error:
            logger.critical("history_damaged", extra={"reason": str(error)})
            return Refused(Reason.DAMAGED, str(error))
        if type(command) in READS and decision.answer:
            try:
                decision, size = self.damage.filled(command, decision)
            except StoreError as error:
                return Refused(Reason.UNAVAILABLE, f"it cannot be read: {error}")
        if decision.events:
            self.apply(decision.events)
        if takes_room and size:
            self._commit.promise(size)
        return decision.answer

    def apply(self, events: Sequence[Event]) -> None:
        engine, commit, counts = self.engine, self._commit, self.events_by_kind
        append = commit.log.append
        waiters, followers, recent = self._waiters, self.followers, self.recent
        tally = self.tally if self.tally.is_wanted else None
        observers = waiters.observers if waiters.by_key or waiters.workers.watches else None
        for event in events:
            kind = event.kind
            if observers and kind in observers:
                observers[kind](event, engine)
            if followers.by_place:
                # The event is part of the batch that collects, or will be right away.
                commit.held_for_sync += followers.concerned(event, engine.moved, engine.origins)
            if recent.is_wanted and kind in NOTED:
                recent.note(event)
            if tally and kind in TALLIED:
                tally.note(event)
            engine.evolve(event, append(event))
            counts[kind] += event.records
            if kind in _OBSERVED:
                self._observe(event)
        commit.collecting = True
        if not commit.flush_is_due and not commit.rounds.under_way:
            commit.flush_soon()
        if engine.next_deadline < self._deadline.at:
            self._deadline.set(engine.next_deadline)

    def _observe(self, event: Any) -> None:
        if event.kind.row.about == "queue":
            self._commit.held_for_sync.append((self._queue_is_durable, event.queue))
        elif event.kind.row.about == "schedule":
            if (due := self.engine.schedules.next_due) != self._calendar.at:
                self._calendar.set(due)
        else:
            self._commit.held_for_sync.append((self._token_is_durable, event.token))

    def _token_is_durable(self, name: str | Refused) -> None:
        if not isinstance(name, Refused):
            for callback in self.on_token:
                callback(name)

    def _queue_is_durable(self, number: int | Refused) -> None:
        if not isinstance(number, Refused):
            for callback in self.on_queue:
                callback(number)
