"""What consumers say of messages they have, decided: an outcome, or that they need more time.

The first word counts. What is said later of a message that is done with, or by one of several consumers that has
spoken before, is discarded. Where a queue asks for several confirmations, each consumer that has the message speaks
for itself, and the one that makes the number full completes it.
"""

from __future__ import annotations

from collections import Counter

from penstock.engine.decide.finish import finish_run, is_done_with, is_held, may_settle
from penstock.engine.decide.retry import returned
from penstock.engine.groups import AWAITED, HELD, Slot
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Decision, Discarded, Done, LeasedUntil, Refused, Settled
from penstock.model.commands import Extend, Finish, FinishMany, Settle, SettleMany
from penstock.model.events import (
    Completed,
    Declined,
    Event,
    Extended,
    GivenBack,
    Invalidated,
    ResultStored,
    Succeeded,
)
from penstock.model.lifecycle import LEASED
from penstock.model.values import Nanos

_Place = tuple[int, int]  # Queue and sequence.

_DONE = Done()
_DISCARDED = Discarded()


def settle(engine: EngineState, command: Settle, now: Nanos) -> Decision:
    settling = _Settling(engine, now)
    answer = settling.settle(command)
    return Decision(settling.events, answer)


def settle_many(engine: EngineState, command: SettleMany, now: Nanos) -> Decision:
    settles = command.settles
    if len(settles) >= RUN_MESSAGES_MIN and all(each.outcome == "success" for each in settles):
        run = finish_run(engine, FinishMany([_finish_of(each) for each in settles]), now)
        if run:
            return run
    settling = _Settling(engine, now)
    answers = [settling.settle(each) for each in settles]
    return Decision(settling.events, answers)


class _Settling:
    """Outcomes that are decided together: each has to know what those before it did, which is not applied yet."""

    def __init__(self, engine: EngineState, now: Nanos) -> None:
        self._engine = engine
        self._now = now
        self.events: list[Event] = []
        self._done_with: set[_Place] = set()
        self._spoken: set[tuple[_Place, int]] = set()  # Which of several consumers have.
        self._confirmed: Counter[_Place] = Counter()
        self._taken: dict[int, int] = {}  # Sequences given out in dead-letter queues.

    def settle(self, command: Settle) -> Settled:
        found = self._engine.find(command.queue, command.sequence)
        if found is None:
            return self._absent(command)
        queue, sequence, row = found
        if (queue.number, sequence) in self._done_with:
            return _DISCARDED
        consumer = self._engine.names.known(command.consumer or "")
        if consumer and queue.settings.confirmations > 1 and consumer in queue.groups:
            return self._settle_alone(queue, sequence, row, consumer, command)
        if is_done_with(queue, row):
            return _DISCARDED
        return self._settle_for_all(queue, sequence, row, command)

    def _absent(self, command: Settle) -> Settled:
        """A message that was there once is done with; of any other nothing is known."""
        home = self._engine.queues.get(command.queue)
        was_there = home is not None and command.sequence <= home.last_sequence
        return _DISCARDED if was_there else Refused(Reason.NO_MESSAGE)

    def _settle_for_all(self, queue: Queue, sequence: int, row: Row, command: Settle) -> Settled:
        """By the worker that has the message, or by anyone if nobody is named."""
        retry = command.outcome == "retry"
        if not may_settle(self._engine, row, command) or (retry and not is_held(row)):
            return Refused(Reason.LEASE_GONE)
        place = (queue.number, sequence)
        self._done_with.add(place)
        facts = (self._now, *place, row.created, row.receives)
        if retry:
            rest = (self._now, command.delay_ns, self._taken)
            self.events.append(returned(self._engine, queue, sequence, row, *rest))
        elif command.outcome == "success":
            complete = queue.settings.confirmations <= 1 or queue.completes(sequence, self._confirmed[place])
            self.events.append(Succeeded(*facts, row.consumer, complete, command.result))
        else:
            kind = Invalidated if command.outcome == "invalid" else Declined
            self.events.append(kind(*facts, queue.worker(sequence, row)))
        return _DONE

    def _settle_alone(self, queue: Queue, sequence: int, row: Row, consumer: int, command: Settle) -> Settled:
        """By one of several consumers."""
        place = (queue.number, sequence)
        slot = queue.groups.slot(consumer, sequence)
        if (slot and slot.state not in (AWAITED, HELD)) or (place, consumer) in self._spoken:
            return _DISCARDED
        if slot is None or not _is_with(queue, slot, command) or row.expires_at <= self._now:
            return Refused(Reason.LEASE_GONE)
        facts = (self._now, *place, row.created, slot.size, consumer)
        self._spoken.add((place, consumer))
        if command.outcome == "success":
            self.events.append(ResultStored(*facts, command.result))
            if queue.completes(sequence, self._confirmed[place]):
                self.events.append(Completed(*facts))
                self._done_with.add(place)
            self._confirmed[place] += 1
        elif command.outcome == "retry":
            lease = row._replace(state=LEASED, receives=slot.size, consumer=consumer)
            rest = (self._now, command.delay_ns, self._taken, GivenBack)
            event = returned(self._engine, queue, sequence, lease, *rest)
            self.events.append(event)
            if type(event) is not GivenBack:
                self._done_with.add(place)
        else:
            self.events.append(Invalidated(*facts) if command.outcome == "invalid" else Declined(*facts))
        return _DONE


def _finish_of(command: Settle) -> Finish:
    return Finish(command.queue, command.sequence, command.consumer, command.delivery, command.result)


def extend(engine: EngineState, command: Extend, now: Nanos) -> Decision:
    found = engine.find(command.queue, command.sequence)
    if found is None:
        return Decision((), Refused(Reason.NO_MESSAGE))
    queue, sequence, row = found
    visible_at = min(now + command.lease_ns, NEVER_NS)
    consumer = engine.names.known(command.consumer or "")
    slot = queue.groups.slot(consumer, sequence) if consumer else None
    if slot and _is_with(queue, slot, command):
        facts = (now, queue.number, sequence, row.created, slot.size, consumer)
    elif is_held(row) and may_settle(engine, row, command):
        facts = (now, queue.number, sequence, row.created, row.receives, queue.worker(sequence, row))
    else:
        return Decision((), Refused(Reason.LEASE_GONE))
    return Decision((Extended(*facts, visible_at),), LeasedUntil(visible_at))


def _is_with(queue: Queue, slot: Slot, command: Settle | Extend) -> bool:
    """Has this consumer the message, and by this very delivery, if one is named? A receiver has what it owes."""
    has = slot.state == HELD or (slot.state == AWAITED and queue.settings.confirmations <= 1)
    return has and command.delivery in (None, slot.size)
