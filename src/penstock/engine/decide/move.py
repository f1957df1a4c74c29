"""What an operator does to messages: cancel or reschedule one that is delayed, move some to another queue."""

from __future__ import annotations

from penstock.engine.decide.facts import facts_of
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import NEVER_NS
from penstock.model.answers import Decision, Done, Redriven, Refused, ScheduledAt
from penstock.model.commands import Cancel, Redrive, Reschedule
from penstock.model.events import Deleted, Event, Moved, Rescheduled
from penstock.model.lifecycle import DELAYED, READY
from penstock.model.values import Nanos


def cancel(engine: EngineState, command: Cancel, now: Nanos) -> Decision:
    found = _delayed(engine, command)
    if isinstance(found, Refused):
        return Decision((), found)
    return Decision((Deleted(*facts_of(*found, now)),), Done())


def reschedule(engine: EngineState, command: Reschedule, now: Nanos) -> Decision:
    found = _delayed(engine, command)
    if isinstance(found, Refused):
        return Decision((), found)
    visible_at = max(command.visible_at, now)
    return Decision((Rescheduled(*facts_of(*found, now), visible_at=visible_at),), ScheduledAt(visible_at))


def _delayed(engine: EngineState, command: Cancel | Reschedule) -> tuple[Queue, int, Row] | Refused:
    """A message that only waits for its time: not one that its last consumer still has as a dead letter."""
    found = engine.find(command.queue, command.sequence)
    if found is None:
        return Refused(Reason.NO_MESSAGE)
    row = found[2]
    return found if row.state == DELAYED and not row.consumer else Refused(Reason.NOT_DELAYED)


def redrive(engine: EngineState, command: Redrive, now: Nanos) -> Decision:
    """Move what can be moved: what nobody has, and what has somewhere to go."""
    queue, target = engine.queue(command.queue), engine.queue(command.to) if command.to else None
    if queue is None or (command.to and target is None):
        return Decision((), Refused(Reason.NO_QUEUE, command.to if queue else command.queue))
    events: list[Event] = []
    taken: dict[int, int] = {}  # Sequences given out by this very decision.
    for sequence in command.sequences:
        row = queue.rows.get(sequence)
        there = target or _origin(engine, queue, sequence)
        if row is None or there is None or there is queue or not _is_free(row):
            continue
        to_sequence = taken.get(there.number, there.last_sequence) + 1
        taken[there.number] = to_sequence
        expires_at = min(now + there.settings.retention_ns, NEVER_NS)
        visible_at = max(now, row.visible_at) if row.state == DELAYED else now
        facts = facts_of(queue, sequence, row, now)
        events.append(Moved(*facts, visible_at, expires_at, there.number, to_sequence))
    return Decision(events, Redriven(len(events), len(command.sequences) - len(events)))


def _is_free(row: Row) -> bool:
    return row.state == READY or (row.state == DELAYED and not row.consumer)


def _origin(engine: EngineState, queue: Queue, sequence: int) -> Queue | None:
    """Where a message was published, if it has moved since and that queue is still there."""
    origin = engine.origins.get((queue.number, sequence))
    return engine.queues.get(origin[0]) if origin else None
