"""Messages whose bytes on the disk are damaged, decided: set aside, taken back once they can be read, deleted.

The engine knows where the bytes of each message are, and the log says which parts of it are damaged. Whatever lies in
such a part is set aside, in every queue, and everything else goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.engine.decide.facts import facts_of
from penstock.engine.decide.finish import is_held
from penstock.engine.decide.search import Turn
from penstock.engine.state import EngineState
from penstock.errors import Reason
from penstock.limits import NEVER_NS
from penstock.model.answers import Aside, Decision, Done, refuse
from penstock.model.commands import Criteria, Delete, Restore, SetAside
from penstock.model.events import Damaged, Deleted, Event, Restored
from penstock.model.lifecycle import DAMAGED
from penstock.model.values import Nanos, Position

_ALL = Criteria()


def set_aside(engine: EngineState, command: SetAside, now: Nanos) -> Decision:
    turn = Turn(engine, _ALL, command.after)
    events: list[Event] = []
    for queue, sequences, rows in turn.pieces():
        for sequence in sequences[_are_damaged(rows, command.ranges)].tolist():
            row = queue.rows.get(sequence)
            assert row is not None
            events.append(Damaged(*facts_of(queue, sequence, row, now)))
    return Decision(events, Aside(len(events), turn.resume))


def _are_damaged(rows: NDArray[Any], ranges: Sequence[tuple[Position, Position]]) -> NDArray[np.bool_]:
    """Which of them have bytes in one of these ranges. An empty message has none that could be damaged."""
    starts, ends = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    first = rows["position"].astype(np.int64)
    sizes = rows["body_bytes"].astype(np.int64) + rows["key_bytes"] + rows["headers_bytes"]
    following = np.searchsorted(ends, first, side="right")  # The first range that ends after it begins.
    reached = np.append(starts, NEVER_NS)[following] < first + sizes
    mask: NDArray[np.bool_] = reached & (sizes > 0) & (rows["state"] != DAMAGED)
    return mask


def restore(engine: EngineState, command: Restore, now: Nanos) -> Decision:
    """Ready or delayed, as it was; what workers were done with goes back to receivers alone."""
    events: list[Event] = []
    for number, sequence in command.places:
        queue = engine.queues.get(number)
        row = queue.rows.get(sequence) if queue else None
        if queue and row and row.state == DAMAGED:
            visible_at = row.visible_at if row.visible_at == NEVER_NS else max(row.visible_at, now)
            events.append(Restored(*facts_of(queue, sequence, row, now)[:-1], 0, visible_at))
    return Decision(events, Done())


def delete(engine: EngineState, command: Delete, now: Nanos) -> Decision:
    found = engine.find(command.queue, command.sequence)
    if found is None:
        return refuse(Reason.NO_MESSAGE)
    queue, sequence, row = found
    if is_held(row):
        return refuse(Reason.LEASED)
    return Decision((Deleted(*facts_of(queue, sequence, row, now)),), Done())
