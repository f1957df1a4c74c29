"""What the broker does by itself, or piece by piece, so that nothing blocks other clients: end what is due, delete
all messages of a queue, write messages again so that an old segment can go, and forget names that nothing uses."""

from __future__ import annotations

from penstock.engine.decide.draft import Draft, facts_of
from penstock.engine.decide.retry import end_lease, give_back
from penstock.engine.queue import Queue
from penstock.errors import Reason
from penstock.limits import NAMES_FORGOTTEN_AT_ONCE, PURGE_AT_ONCE, ROWS_PER_CHUNK, TICK_EVENTS_MAX
from penstock.model.answers import Done, Purged, Refused
from penstock.model.commands import Carry, ForgetNames, Purge, Tick
from penstock.model.events import Carried, Deleted, Expired, GivenBack, NameForgotten, ResultCarried
from penstock.model.lifecycle import GONE, LEASED
from penstock.model.values import Place, Position


def tick(draft: Draft, _: Tick) -> Done:
    events, now = draft.events, draft.now
    draft.done_with = set()
    for queue in draft.state.due(now):
        for sequence, row in queue.overdue_lifetimes(TICK_EVENTS_MAX - len(events), now):
            events.append(Expired(*facts_of(queue, sequence, row, now)))
        for sequence, row in queue.overdue_leases(TICK_EVENTS_MAX - len(events), now):
            if row.expires_at > now:  # Otherwise it expires, now or with the next tick.
                end_lease(draft, queue, sequence, row)
        _end_leases_alone(draft, queue)
        if len(events) >= TICK_EVENTS_MAX:
            break
    return Done()


def _end_leases_alone(draft: Draft, queue: Queue) -> None:
    """End leases of messages that several consumers must confirm. A message may fail with any of them."""
    for sequence, consumer, slot in queue.groups.overdue(TICK_EVENTS_MAX - len(draft.events), draft.now):
        found = draft.find(queue.number, sequence)
        if found and found[2].expires_at > draft.now:
            lease = found[2]._replace(state=LEASED, receives=slot.size, consumer=consumer)
            give_back(draft, queue, sequence, lease, 0, GivenBack)


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


def forget_names(draft: Draft, _: ForgetNames) -> Done:
    """Forget some of the names that the sweep has found unused."""
    for number, text in draft.state.names.some_unused(NAMES_FORGOTTEN_AT_ONCE):
        draft.events.append(NameForgotten(draft.now, number, text))
    return Done()
