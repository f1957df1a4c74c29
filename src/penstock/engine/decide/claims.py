"""Read or finish messages that a consumer leased earlier and names by queue and sequence.

A stream processor stores in its checkpoint what it has leased, and returns to it after a crash, when the leases may
have ended. Messages that no other consumer has taken meanwhile still belong to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from penstock.engine.decide.draft import Draft
from penstock.engine.decide.fetch import delivery_of
from penstock.engine.decide.finish import finish
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.limits import FETCH_BYTES_MAX, NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Claimed
from penstock.model.commands import Finish, FinishClaimed, ReadClaimed
from penstock.model.events import Extended, Fetched, SucceededRun
from penstock.model.lifecycle import DELAYED, LEASED, READY
from penstock.model.values import Nanos

_Ranges = Sequence[tuple[int, int, int]]


def read_claimed(draft: Draft, command: ReadClaimed) -> Claimed:
    answer = Claimed([], 0)
    now, consumer = draft.now, draft.number(command.consumer)
    until = min(now + command.lease_ns, NEVER_NS)
    room = FETCH_BYTES_MAX
    draft.done_with = set()
    for place in _places(command.claimed):
        found = draft.find(*place)
        if found is None or not _is_ours(found[2], consumer) or _ends(found, now):
            answer.missing += 1
            continue
        queue, sequence, row = found
        draft.end(queue, sequence)
        room -= row.body_bytes
        if room < 0 and answer.deliveries:
            answer.following = place
            break
        facts = (now, queue.number, sequence, row.created)
        if row.state == READY:
            draft.events.append(Fetched(*facts, row.receives + 1, consumer, until))
        else:
            row = row._replace(receives=row.receives - 1)  # `deliveries_of` adds this delivery.
            if row.visible_at < now + command.lease_ns // 2:
                draft.events.append(Extended(*facts, row.receives + 1, queue.worker(sequence, row), until))
        answer.deliveries.append(delivery_of(draft.state, queue, sequence, row, until))
    return answer


def finish_claimed(draft: Draft, command: FinishClaimed) -> Claimed:
    missing = 0
    draft.done_with = set()
    consumer = draft.state.names.known(command.consumer)
    for number, first, last in command.claimed:
        if _finish_together(draft, number, first, last, consumer):
            continue
        for sequence in range(first, last + 1):
            found = draft.find(number, sequence)
            if found is None or not _is_ours(found[2], consumer):
                missing += 1
            else:
                finish(draft, Finish(number, sequence))
    return Claimed([], missing)


def _finish_together(draft: Draft, number: int, first: int, last: int, consumer: int) -> bool:
    """Finish many messages in one event, if all of them are leased and nothing about their queue is special."""
    state = draft.state
    queue, count = state.queues.get(number), last - first + 1
    if queue is None or count < RUN_MESSAGES_MIN or state.moved or queue.settings.keeps:
        return False
    rows = queue.rows.run(first, count)
    if rows is None or not (np.all(rows["state"] == LEASED) and np.all(rows["consumer"] == consumer)):
        return False
    places = [(number, sequence) for sequence in range(first, last + 1)]
    done_with = draft.done_with
    assert done_with is not None
    if not done_with.isdisjoint(places):
        return False  # Ranges may overlap.
    done_with.update(places)
    columns = (rows["created"].tolist(), rows["receives"].tolist(), rows["consumer"].tolist())
    draft.events.append(SucceededRun(draft.now, number, list(range(first, last + 1)), *columns))
    return True


def _places(claimed: _Ranges) -> Iterator[tuple[int, int]]:
    for queue, first, last in claimed:
        for sequence in range(first, last + 1):
            yield queue, sequence


def _is_ours(row: Row, consumer: int) -> bool:
    """Whether the consumer holds the message, perhaps as a dead letter, or no consumer has it since its lease
    ended."""
    if row.state == READY:
        return row.receives > 0
    return row.state in (LEASED, DELAYED) and row.consumer == consumer != 0


def _ends(found: tuple[Queue, int, Row], now: Nanos) -> bool:
    """Whether the message has expired, or another delivery would be its last."""
    queue, _, row = found
    policy = queue.settings.redrive_policy
    last = row.state == READY and policy is not None and row.receives + 1 >= policy.max_receives
    return last or row.expires_at <= now
