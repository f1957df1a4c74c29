"""Finish or release messages for their consumers. Many messages finished in the simplest way are one event."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engine.decide.draft import Draft
from penstock.engine.decide.retry import give_back
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import RUN_MESSAGES_MIN
from penstock.model.answers import Done, Refused
from penstock.model.commands import Extend, Finish, FinishMany, Release, Settle
from penstock.model.events import Succeeded, SucceededRun
from penstock.model.lifecycle import DAMAGED, DELAYED, KEPT, LEASED
from penstock.model.values import Place

_DONE = Done()


def finish(draft: Draft, command: Finish) -> Done | Refused:
    found = draft.find(command.queue, command.sequence)
    if found is None:
        return Refused(Reason.NO_MESSAGE)
    queue, sequence, row = found
    if row.state != LEASED and is_done_with(queue, row):
        return Refused(Reason.NO_MESSAGE)
    if not may_settle(draft.state, row, command):
        return Refused(Reason.LEASE_GONE)
    facts = (draft.now, queue.number, sequence, row.created, row.receives, row.consumer)
    complete = queue.settings.confirmations <= 1 or queue.completes(sequence)
    draft.events.append(Succeeded(*facts, complete, command.result))
    if draft.done_with is not None:
        draft.done_with.add((queue.number, sequence))
    return _DONE


def finish_many(draft: Draft, command: FinishMany) -> list[Done | Refused]:
    if len(command.finishes) >= RUN_MESSAGES_MIN and (run := finish_run(draft, command.finishes)):
        return run
    draft.done_with = set()
    return [finish(draft, each) for each in command.finishes]


def finish_run(draft: Draft, finishes: Sequence[Finish | Settle]) -> list[Done | Refused] | None:
    """Finish many messages in one event, if all are leased, in one queue, and nothing about that queue is special."""
    state = draft.state
    number = finishes[0].queue
    queue = state.queues.get(number)
    if queue is None or state.moved or queue.settings.keeps:
        return None
    sequences = [finish.sequence for finish in finishes]
    rows = queue.rows.many(sequences)
    if rows is None or (rows["state"] != LEASED).any():
        return None
    receives, consumers, texts = rows["receives"].tolist(), rows["consumer"].tolist(), state.names.texts
    for finish, received, consumer in zip(finishes, receives, consumers, strict=True):
        if finish.queue != number or finish.result:
            return None
        if finish.consumer is not None and finish.consumer != texts[consumer]:
            return None
        if finish.delivery is not None and finish.delivery != received:
            return None
    draft.events.append(SucceededRun(draft.now, number, sequences, rows["created"].tolist(), receives, consumers))
    return [_DONE] * len(sequences)


def release(draft: Draft, command: Release) -> Done | Refused:
    found = draft.find(command.queue, command.sequence)
    if found is None or found[2].state == KEPT:
        return Refused(Reason.NO_MESSAGE)
    queue, sequence, row = found
    if not is_held_by(draft.state, row, command):
        return Refused(Reason.LEASE_GONE)
    give_back(draft, queue, sequence, row, command.delay_ns)
    return _DONE


def is_done_with(queue: Queue, row: Row) -> bool:
    """Whether workers have nothing left to do. In a queue that keeps messages, a damaged one stays for receivers."""
    return row.state == KEPT or (row.state == DAMAGED and queue.settings.keeps)


def is_held(row: Row) -> bool:
    """Whether a consumer holds the message: by a lease, or as a dead letter since its last delivery."""
    return row.state == LEASED or (row.state == DELAYED and (row.consumer != 0 or row.is_held_namelessly))


def is_held_by(state: EngineState, row: Row, command: Release | Settle | Extend) -> bool:
    """Whether the command comes from the consumer that holds the message."""
    return is_held(row) and may_settle(state, row, command)


def may_settle(state: EngineState, row: Row, command: Finish | Release | Settle | Extend) -> bool:
    """Whether the command may end the message. If it names a consumer or delivery, that must be the one that holds
    it."""
    consumer, delivery = command.consumer, command.delivery
    if delivery is not None and not _is_running(state, row, (command.queue, command.sequence), delivery):
        return False
    if consumer is None:
        return True
    has = is_held(row) or (row.state == DAMAGED and row.consumer != 0)
    return has and state.names.texts[row.consumer] == consumer


def _is_running(state: EngineState, row: Row, place: Place, delivery: int) -> bool:
    """Whether the lease of this delivery holds the message. A dead letter counts its receives from 0 again, and is
    held by the delivery that used up those of its origin."""
    if row.state == LEASED or row.state == DAMAGED:
        return row.receives == delivery
    origin = state.queues.get(place[0]) if place in state.moved else None
    policy = origin.settings.redrive_policy if origin else None
    return is_held(row) and policy is not None and delivery >= policy.max_receives
