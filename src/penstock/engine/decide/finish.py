"""Messages that their consumers confirm or give back. Many that are finished in the plainest way are one event."""

from __future__ import annotations

from penstock.engine.decide.retry import returned
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import RUN_MESSAGES_MIN
from penstock.model.answers import Decision, Done, Refused, refuse
from penstock.model.commands import Extend, Finish, FinishMany, Release, Settle
from penstock.model.events import Event, Succeeded, SucceededRun
from penstock.model.lifecycle import DAMAGED, DELAYED, KEPT, LEASED
from penstock.model.values import Nanos, Place

_DONE = Done()


def finish(engine: EngineState, command: Finish, now: Nanos) -> Decision:
    found = engine.find(command.queue, command.sequence)
    if found is None or is_done_with(found[0], found[2]):
        return refuse(Reason.NO_MESSAGE)
    queue, sequence, row = found
    if not may_settle(engine, row, command):
        return refuse(Reason.LEASE_GONE)
    facts = (now, queue.number, sequence, row.created, row.receives, row.consumer)
    complete = queue.settings.confirmations <= 1 or queue.completes(sequence)
    return Decision((Succeeded(*facts, complete, command.result),), _DONE)


def finish_many(engine: EngineState, command: FinishMany, now: Nanos) -> Decision:
    if len(command.finishes) >= RUN_MESSAGES_MIN and (run := finish_run(engine, command, now)):
        return run
    events: list[Event] = []
    answers: list[Done | Refused] = []
    done: set[Place] = set()
    for one in command.finishes:
        place = (one.queue, one.sequence)
        decision = refuse(Reason.NO_MESSAGE) if place in done else finish(engine, one, now)
        if decision.events:
            done.add(place)
        events.extend(decision.events)
        answers.append(decision.answer)  # type: ignore[arg-type]
    return Decision(events, answers)


def finish_run(engine: EngineState, command: FinishMany, now: Nanos) -> Decision | None:
    """Many messages in one event, if all of them are leased, in one queue and finished in the plainest way."""
    finishes = command.finishes
    number = finishes[0].queue
    queue = engine.queues.get(number)
    if queue is None or engine.moved or queue.settings.keeps:
        return None
    sequences = [finish.sequence for finish in finishes]
    rows = queue.rows.many(sequences)
    if rows is None or (rows["state"] != LEASED).any():
        return None
    receives, consumers, texts = rows["receives"].tolist(), rows["consumer"].tolist(), engine.names.texts
    for finish, received, consumer in zip(finishes, receives, consumers, strict=True):
        if finish.queue != number or finish.result:
            return None
        if finish.consumer is not None and finish.consumer != texts[consumer]:
            return None
        if finish.delivery is not None and finish.delivery != received:
            return None
    event = SucceededRun(now, number, sequences, rows["created"].tolist(), receives, consumers)
    return Decision((event,), [_DONE] * len(sequences))


def release(engine: EngineState, command: Release, now: Nanos) -> Decision:
    found = engine.find(command.queue, command.sequence)
    if found is None or found[2].state == KEPT:
        return refuse(Reason.NO_MESSAGE)
    queue, sequence, row = found
    if not is_held(row) or not may_settle(engine, row, command):
        return refuse(Reason.LEASE_GONE)
    return Decision((returned(engine, queue, sequence, row, now, command.delay_ns, {}),), _DONE)


def is_done_with(queue: Queue, row: Row) -> bool:
    """Is there nothing left for workers to do? A damaged message stays where receivers may have results for it."""
    return row.state == KEPT or (row.state == DAMAGED and queue.settings.keeps)


def is_held(row: Row) -> bool:
    """Leased; or a dead letter that is still with the consumer whose delivery was the last one."""
    return row.state == LEASED or (row.state == DELAYED and row.consumer != 0)


def may_settle(engine: EngineState, row: Row, command: Finish | Release | Settle | Extend) -> bool:
    """Anyone, if no lease is named; else only the one who has the message, be it as a dead letter."""
    consumer, delivery = command.consumer, command.delivery
    if delivery is not None and not _is_running(engine, row, command.queue, delivery):
        return False
    if consumer is None:
        return True
    has = is_held(row) or (row.state == DAMAGED and row.consumer != 0)
    return has and engine.names.texts[row.consumer] == consumer


def _is_running(engine: EngineState, row: Row, queue: int, delivery: int) -> bool:
    """Is it this delivery's lease that holds the message? A dead letter counts from 0 again, and is held by the
    delivery that used up its receives."""
    if row.state == LEASED or row.state == DAMAGED:
        return row.receives == delivery
    origin = engine.queues.get(queue)
    policy = origin.settings.redrive_policy if origin else None
    return row.state == DELAYED and row.receives == 0 and policy is not None and delivery >= policy.max_receives
