"""Set aside messages whose bytes on disk are damaged; restore them once they can be read again, or delete them.

The engine knows where the bytes of each message are, and the log knows which of its parts are damaged. Every message
in such a part is set aside, in all queues; all others are not affected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.engine.decide.draft import Draft, facts_of
from penstock.engine.decide.finish import is_held
from penstock.engine.decide.search import Turn
from penstock.errors import Reason
from penstock.limits import NEVER_NS
from penstock.model.answers import Aside, Done, Refused
from penstock.model.commands import Criteria, Delete, Restore, SetAside
from penstock.model.events import Damaged, Deleted, Restored
from penstock.model.lifecycle import DAMAGED
from penstock.model.values import Position

_ALL = Criteria()


def set_aside(draft: Draft, command: SetAside) -> Aside:
    turn = Turn(draft.state, _ALL, command.after)
    for queue, sequences, rows in turn.pieces():
        for sequence in sequences[_are_damaged(rows, command.ranges)].tolist():
            row = queue.rows.get(sequence)
            assert row is not None
            draft.events.append(Damaged(*facts_of(queue, sequence, row, draft.now)))
    return Aside(len(draft.events), turn.resume)


def _are_damaged(rows: NDArray[Any], ranges: Sequence[tuple[Position, Position]]) -> NDArray[np.bool_]:
    """For each row, whether it has bytes in one of these ranges. An empty message has no bytes."""
    starts, ends = np.array(ranges, dtype=np.int64).reshape(-1, 2).T
    first = rows["position"].astype(np.int64)
    sizes = rows["body_bytes"].astype(np.int64) + rows["key_bytes"] + rows["headers_bytes"]
    following = np.searchsorted(ends, first, side="right")  # The first range that ends after the row's first byte.
    reached = np.append(starts, NEVER_NS)[following] < first + sizes
    mask: NDArray[np.bool_] = reached & (sizes > 0) & (rows["state"] != DAMAGED)
    return mask


def restore(draft: Draft, command: Restore) -> Done:
    """Make a message ready or delayed, as before. One that workers are done with becomes visible to receivers
    only."""
    for number, sequence in command.places:
        queue = draft.state.queues.get(number)
        row = queue.rows.get(sequence) if queue else None
        if queue and row and row.state == DAMAGED:
            visible_at = row.visible_at if row.visible_at == NEVER_NS else max(row.visible_at, draft.now)
            draft.events.append(Restored(*facts_of(queue, sequence, row, draft.now)[:-1], 0, visible_at))
    return Done()


def delete(draft: Draft, command: Delete) -> Done | Refused:
    found = draft.find(command.queue, command.sequence)
    if found is None:
        return Refused(Reason.NO_MESSAGE)
    if is_held(found[2]):
        return Refused(Reason.LEASED)
    draft.events.append(Deleted(*facts_of(*found, draft.now)))
    return Done()
