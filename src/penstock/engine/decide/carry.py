"""Write messages and results again at the end of the log, so that an old segment can be removed."""

from __future__ import annotations

from penstock.engine.decide.draft import Draft
from penstock.engine.decide.facts import facts_of
from penstock.model.answers import Done
from penstock.model.commands import Carry
from penstock.model.events import Carried, ResultCarried
from penstock.model.values import Place, Position


def carry(draft: Draft, command: Carry) -> Done:
    """Write again what is still at the position where it was read. Messages that share an extent continue to share
    it."""
    events, now, queues = draft.events, draft.now, draft.state.queues
    carried: dict[tuple[Position, int], Place] = {}
    for number, sequence, position, extent in command.messages:
        queue = queues.get(number)
        row = queue.rows.get(sequence) if queue else None
        if queue is None or row is None or row.position != position:
            continue
        facts = facts_of(queue, sequence, row, now)
        sibling = carried.setdefault((position, len(extent)), (number, sequence))
        shares = sibling != (number, sequence)
        events.append(Carried(*facts, b"", *sibling) if shares else Carried(*facts, extent))
    for number, sequence, receiver, position, result in command.results:
        queue = queues.get(number)
        row = queue.rows.get(sequence) if queue else None
        if queue and row and queue.groups.holds(receiver, sequence, position):
            events.append(ResultCarried(now, number, sequence, row.created, 0, receiver, result))
    return Done()
