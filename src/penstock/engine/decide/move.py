"""Operations on messages for operators: cancel or reschedule a delayed one, move some to another queue."""

from __future__ import annotations

from penstock.engine.decide.administer import has_queue
from penstock.engine.decide.draft import Draft, facts_of
from penstock.engine.decide.finish import is_held
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import NEVER_NS
from penstock.model.answers import Done, Redriven, Refused, ScheduledAt
from penstock.model.commands import Cancel, Redrive, Reschedule
from penstock.model.events import Deleted, Moved, Rescheduled, Sent
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
    visible_at = max(draft.time_at(command.visible_at), draft.now)
    draft.events.append(Rescheduled(*facts_of(*found, draft.now), visible_at))
    return ScheduledAt(visible_at)


def _delayed(draft: Draft, command: Cancel | Reschedule) -> tuple[Queue, int, Row] | Refused:
    """A message that is delayed, and not a dead letter that its last consumer still holds."""
    found = draft.find(command.queue, command.sequence)
    if found is None:
        return Refused(Reason.NO_MESSAGE)
    row = found[2]
    return found if row.state == DELAYED and not is_held(row) else Refused(Reason.NOT_DELAYED)


def redrive(draft: Draft, command: Redrive) -> Redriven | Refused:
    """Move the messages that no consumer holds and whose target queue exists."""
    queue = draft.queue(command.queue)
    if queue is None or (command.to and not has_queue(draft, command.to)):
        return Refused(Reason.NO_QUEUE, command.to if queue else command.queue)
    for sequence in command.sequences:
        row = queue.rows.get(sequence)
        there = command.to or _origin(draft.state, queue, sequence)
        if row and there and there != queue.name and _is_free(row) and has_queue(draft, there):
            _move(draft, queue, sequence, row, there)
    moved = len(draft.events)
    return Redriven(moved, len(command.sequences) - moved)


def _move(draft: Draft, queue: Queue, sequence: int, row: Row, name: str) -> None:
    facts = facts_of(queue, sequence, row, draft.now)
    there = draft.queue(name)
    if there is None:
        draft.events.append(Sent(*facts, draft.state.home(name), name.encode()))
        return
    expires_at = min(draft.now + there.settings.retention_ns, NEVER_NS)
    visible_at = max(draft.now, row.visible_at) if row.state == DELAYED else draft.now
    draft.events.append(Moved(*facts, visible_at, expires_at, there.number, draft.take(there)))


def _is_free(row: Row) -> bool:
    return row.state == READY or (row.state == DELAYED and not is_held(row))


def _origin(state: EngineState, queue: Queue, sequence: int) -> str:
    """The queue a moved message was published to; empty if it is gone."""
    origin = state.origins.get((queue.number, sequence))
    return state.name_of(origin[0]) if origin else ""
