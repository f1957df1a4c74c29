"""Delete all messages of a queue, slice by slice, so that a queue with millions of messages blocks no other
client."""

from __future__ import annotations

from penstock.engine.decide.draft import Draft
from penstock.errors import Reason
from penstock.limits import PURGE_AT_ONCE, ROWS_PER_CHUNK
from penstock.model.answers import Purged, Refused
from penstock.model.commands import Purge
from penstock.model.events import Deleted
from penstock.model.lifecycle import GONE


def purge(draft: Draft, command: Purge) -> Purged | Refused:
    """Delete the next messages, even those that a consumer holds. Messages that came after the purge began stay."""
    queue = draft.queue(command.queue)
    if queue is None or command.number not in (0, queue.number):
        return Refused(Reason.NO_QUEUE, command.queue)
    last = command.last if command.number else queue.last_sequence
    sequences, rows = queue.rows.piece_from(command.after + 1, PURGE_AT_ONCE // ROWS_PER_CHUNK)
    meant = (rows["state"] != GONE) & (sequences <= last)
    columns = [rows[name][meant].tolist() for name in ("created", "receives", "consumer")]
    for facts in zip(sequences[meant].tolist(), *columns, strict=True):
        draft.events.append(Deleted(draft.now, queue.number, *facts))
    is_over = not len(sequences) or int(sequences[-1]) >= last
    after = None if is_over else int(sequences[-1])
    return Purged(len(draft.events), queue.number, after, last)
