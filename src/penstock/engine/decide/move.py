"""Operations on messages for operators: cancel or reschedule a delayed one, move some to another queue."""

from __future__ import annotations

from penstock.engine.decide.draft import Draft
from penstock.engine.decide.facts import facts_of
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import NEVER_NS
from penstock.model.answers import Done, Redriven, Refused, ScheduledAt
from penstock.model.commands import Cancel, Redrive, Reschedule
from penstock.model.events import Deleted, Moved, Rescheduled
from penstock.model.lifecycle import DELAYED, READY


def cancel(draft: Draft, command: Cancel) -> Done | Refused:
    found = _delayed(draft, command)
    if isinstance(found, Refused):
        return found
    draft.events.append(Deleted(*facts_of(*found, draft.now)))
    return Done()


def reschedule(draft: Draft, command: Reschedule) -> ScheduledAt | Refused:
    found = _delayed(draft, command)
    if isinstance(found, Refused):
        return found
    visible_at = max(command.visible_at, draft.now)
    draft.events.append(Rescheduled(*facts_of(*found, draft.now), visible_at))
    return ScheduledAt(visible_at)


def _delayed(draft: Draft, command: Cancel | Reschedule) -> tuple[Queue, int, Row] | Refused:
    """A message that is delayed, and not a dead letter that its last consumer still holds."""
    found = draft.find(command.queue, command.sequence)
    if found is None:
        return Refused(Reason.NO_MESSAGE)
    row = found[2]
    return found if row.state == DELAYED and not row.consumer else Refused(Reason.NOT_DELAYED)


def redrive(draft: Draft, command: Redrive) -> Redriven | Refused:
    """Move the messages that no consumer holds and whose target queue exists."""
    queue, target = draft.queue(command.queue), draft.queue(command.to) if command.to else None
    if queue is None or (command.to and target is None):
        return Refused(Reason.NO_QUEUE, command.to if queue else command.queue)
    for sequence in command.sequences:
        row = queue.rows.get(sequence)
        there = target or _origin(draft.state, queue, sequence)
        if row is None or there is None or there is queue or not _is_free(row):
            continue
        expires_at = min(draft.now + there.settings.retention_ns, NEVER_NS)
        visible_at = max(draft.now, row.visible_at) if row.state == DELAYED else draft.now
        facts = facts_of(queue, sequence, row, draft.now)
        draft.events.append(Moved(*facts, visible_at, expires_at, there.number, draft.take(there)))
    moved = len(draft.events)
    return Redriven(moved, len(command.sequences) - moved)


def _is_free(row: Row) -> bool:
    return row.state == READY or (row.state == DELAYED and not row.consumer)


def _origin(state: EngineState, queue: Queue, sequence: int) -> Queue | None:
    """The queue a moved message was published to, if it still exists."""
    origin = state.origins.get((queue.number, sequence))
    return state.queues.get(origin[0]) if origin else None
