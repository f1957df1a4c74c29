"""Settle messages with the outcome that a consumer reports, or extend a lease.

The first outcome counts. A later one, for a message that is done or from a consumer that has reported before, is
discarded. If a queue asks for several confirmations, each consumer that holds the message reports for itself, and the
last confirmation needed completes the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.engine.decide.draft import Draft, Facts
from penstock.engine.decide.finish import finish_run, is_done_with, is_held_by, may_settle
from penstock.engine.decide.retry import fail, give_back, give_back_unbegun
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.slots import AWAITED, HELD, Slot
from penstock.errors import Reason
from penstock.limits import NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Discarded, Done, LeasedUntil, Refused, Settled
from penstock.model.commands import Extend, Settle, SettleMany
from penstock.model.events import (
    Completed,
    Declined,
    DeclinedForOne,
    Extended,
    GivenBack,
    Invalidated,
    InvalidatedForOne,
    ResultStored,
    Succeeded,
)
from penstock.model.lifecycle import LEASED
from penstock.model.values import Place

_DONE = Done()
_DISCARDED = Discarded()


def settle(draft: Draft, command: Settle) -> Settled:
    return _Settling(draft).settle(command)


def settle_many(draft: Draft, command: SettleMany) -> Sequence[Settled]:
    settles = command.settles
    if len(settles) >= RUN_MESSAGES_MIN and all(each.outcome == "success" for each in settles):
        run = finish_run(draft, settles)
        if run:
            return run
    settling = _Settling(draft)
    return [settling.settle(each) for each in settles]


class _Settling:
    """Outcomes that are decided together. It keeps the consumers that have reported in this decision, which the draft
    does not: no other decision needs them."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._done_with: set[Place] = set()
        draft.done_with = self._done_with
        self._reported: set[tuple[Place, int]] = set()  # Message and consumer.
        self._confirmed: Counter[Place] = Counter()

    def settle(self, command: Settle) -> Settled:
        state = self._draft.state
        found = state.find(command.queue, command.sequence)
        if found is None:
            return self._absent(command)
        queue, sequence, row = found
        if (queue.number, sequence) in self._done_with:
            return _DISCARDED
        consumer = state.names.known(command.consumer or "")
        if consumer and queue.settings.confirmations > 1 and consumer in queue.groups:
            return self._settle_alone(queue, sequence, row, consumer, command)
        if is_done_with(queue, row):
            return _DISCARDED
        return self._settle_for_all(queue, sequence, row, command)

    def _absent(self, command: Settle) -> Settled:
        """The answer for a message that is not there: done if it existed, an error if it never did."""
        home = self._draft.state.queues.get(command.queue)
        existed = home is not None and command.sequence <= home.last_sequence
        return _DISCARDED if existed else Refused(Reason.NO_MESSAGE)

    def _settle_for_all(self, queue: Queue, sequence: int, row: Row, command: Settle) -> Settled:
        """Settle for the worker that holds the message, or for anyone if the command names no lease."""
        draft, outcome = self._draft, command.outcome
        retry = outcome == "retry"
        allows = is_held_by if outcome in ("retry", "failed") else may_settle
        if not allows(draft.state, row, command):
            return Refused(Reason.LEASE_GONE)
        place = (queue.number, sequence)
        facts = (draft.now, *place, row.created, row.receives)
        if retry and row.is_unbegun and not command.begun:
            give_back_unbegun(draft, queue, sequence, row, command.delay_ns, command.reason)
        elif retry:
            give_back(draft, queue, sequence, row, command.delay_ns, reason=command.reason)
        elif outcome == "success":
            complete = queue.settings.confirmations <= 1 or queue.completes(sequence, self._confirmed[place])
            draft.events.append(Succeeded(*facts, row.consumer, complete, command.result))
        elif outcome == "failed":
            fail(draft, queue, sequence, row, command.reason)
        elif outcome == "invalid":
            draft.events.append(Invalidated(*facts, queue.worker(sequence, row), command.reason))
        else:
            draft.events.append(Declined(*facts, queue.worker(sequence, row)))
        draft.end(queue, sequence)
        return _DONE

    def _settle_alone(self, queue: Queue, sequence: int, row: Row, consumer: int, command: Settle) -> Settled:
        """Settle for one of several consumers."""
        draft, place = self._draft, (queue.number, sequence)
        slot = queue.groups.slot(consumer, sequence)
        if (slot and slot.state not in (AWAITED, HELD)) or (place, consumer) in self._reported:
            return _DISCARDED
        if slot is None or not _is_with(queue, slot, command) or row.expires_at <= draft.now:
            return Refused(Reason.LEASE_GONE)
        self._reported.add((place, consumer))
        facts = (draft.now, *place, row.created, slot.size, consumer)
        if command.outcome == "success":
            self._confirm(queue, facts, command.result)
        elif command.outcome == "retry":
            lease = row._replace(state=LEASED, receives=slot.size, consumer=consumer)
            event = give_back(draft, queue, sequence, lease, command.delay_ns, GivenBack, command.reason)
            if type(event) is not GivenBack:
                draft.end(queue, sequence)
        elif command.outcome in ("invalid", "failed"):
            draft.events.append(InvalidatedForOne(*facts, command.reason))
        else:
            draft.events.append(DeclinedForOne(*facts))
        return _DONE

    def _confirm(self, queue: Queue, facts: Facts, result: bytes) -> None:
        draft, sequence, place = self._draft, facts[2], facts[1:3]
        draft.events.append(ResultStored(*facts, result))
        if queue.completes(sequence, self._confirmed[place]):
            draft.events.append(Completed(*facts))
            draft.end(queue, sequence)
        self._confirmed[place] += 1


def extend(draft: Draft, command: Extend) -> LeasedUntil | Refused:
    found = draft.find(command.queue, command.sequence)
    if found is None:
        return Refused(Reason.NO_MESSAGE)
    queue, sequence, row = found
    visible_at = min(draft.now + command.lease_ns, NEVER_NS)
    consumer = draft.state.names.known(command.consumer or "")
    slot = queue.groups.slot(consumer, sequence) if consumer else None
    if slot and _is_with(queue, slot, command):
        facts = (draft.now, queue.number, sequence, row.created, slot.size, consumer)
    elif is_held_by(draft.state, row, command):
        facts = (draft.now, queue.number, sequence, row.created, row.receives, queue.worker(sequence, row))
    else:
        return Refused(Reason.LEASE_GONE)
    draft.events.append(Extended(*facts, visible_at, command.begun and row.is_unbegun))
    return LeasedUntil(visible_at)


def _is_with(queue: Queue, slot: Slot, command: Settle | Extend) -> bool:
    """Whether this consumer holds the message, by this delivery if the command names one. A receiver holds a message
    as long as its result is owed."""
    has = slot.state == HELD or (slot.state == AWAITED and queue.settings.confirmations <= 1)
    return has and command.delivery in (None, slot.size)
