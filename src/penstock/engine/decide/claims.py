"""Messages that a consumer leased long ago and knows by their places: read again, or done with.

A stream processor notes what it has leased in its checkpoint, and comes back to it after a crash: then its leases may
have run out. What nobody else has taken meanwhile is still its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from penstock.engine.decide.fetch import delivery_of
from penstock.engine.decide.finish import finish
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.limits import FETCH_BYTES_MAX, NEVER_NS, RUN_MESSAGES_MIN
from penstock.model.answers import Claimed, Decision
from penstock.model.commands import Finish, FinishClaimed, ReadClaimed
from penstock.model.events import Event, Extended, Fetched, SucceededRun
from penstock.model.lifecycle import DELAYED, LEASED, READY
from penstock.model.values import Nanos, Place

_Ranges = Sequence[tuple[int, int, int]]


def read_claimed(engine: EngineState, command: ReadClaimed, now: Nanos) -> Decision:
    events: list[Event] = []
    answer = Claimed([], 0)
    consumer = engine.names.number(command.consumer, now, events)
    until = min(now + command.lease_ns, NEVER_NS)
    room = FETCH_BYTES_MAX
    seen: set[Place] = set()
    for place in _places(command.claimed):
        found = engine.find(*place)
        if found is None or not _is_ours(found[2], consumer) or _ends(found, now) or _is_known(found, seen):
            answer.missing += 1
            continue
        queue, sequence, row = found
        room -= row.body_bytes
        if room < 0 and answer.deliveries:
            answer.following = place
            break
        facts = (now, queue.number, sequence, row.created)
        if row.state == READY:
            events.append(Fetched(*facts, row.receives + 1, consumer, until))
        else:
            row = row._replace(receives=row.receives - 1)  # A delivery counts itself.
            if row.visible_at < now + command.lease_ns // 2:
                events.append(Extended(*facts, row.receives + 1, queue.worker(sequence, row), until))
        answer.deliveries.append(delivery_of(engine, queue, sequence, row, until))
    return Decision(events, answer)


def finish_claimed(engine: EngineState, command: FinishClaimed, now: Nanos) -> Decision:
    events: list[Event] = []
    missing = 0
    seen: set[Place] = set()
    consumer = engine.names.known(command.consumer)
    for number, first, last in command.claimed:
        run = _finished_together(engine, number, first, last, consumer, now)
        if run and seen.isdisjoint(places := list(_places([(number, first, last)]))):
            events.append(run)
            seen.update(places)
            continue
        for sequence in range(first, last + 1):
            found = engine.find(number, sequence)
            if found is None or not _is_ours(found[2], consumer) or _is_known(found, seen):
                missing += 1
            else:
                events += finish(engine, Finish(number, sequence), now).events
    return Decision(events, Claimed([], missing))


def _finished_together(
    engine: EngineState, number: int, first: int, last: int, consumer: int, now: Nanos
) -> SucceededRun | None:
    """Many messages in one event, if all of them are leased and finished in the plainest way."""
    queue = engine.queues.get(number)
    if queue is None or last - first + 1 < RUN_MESSAGES_MIN or engine.moved:
        return None
    if queue.settings.keep != "finished" or queue.settings.confirmations > 1:
        return None
    rows = queue.rows.run(first, last - first + 1)
    if rows is None or not (np.all(rows["state"] == LEASED) and np.all(rows["consumer"] == consumer)):
        return None
    columns = (rows["created"].tolist(), rows["receives"].tolist(), rows["consumer"].tolist())
    return SucceededRun(now, number, list(range(first, last + 1)), *columns)


def _places(claimed: _Ranges) -> Iterator[tuple[int, int]]:
    for queue, first, last in claimed:
        for sequence in range(first, last + 1):
            yield queue, sequence


def _is_known(found: tuple[Queue, int, Row], seen: set[Place]) -> bool:
    """Was it spoken of before? Ranges may overlap, and a message that was moved has two places."""
    place = (found[0].number, found[1])
    known = place in seen
    seen.add(place)
    return known


def _is_ours(row: Row, consumer: int) -> bool:
    """It has the lease, be it as that of a dead letter; or had it, and nobody has taken it since."""
    if row.state == READY:
        return row.receives > 0
    return row.state in (LEASED, DELAYED) and row.consumer == consumer != 0


def _ends(found: tuple[Queue, int, Row], now: Nanos) -> bool:
    """Has it expired, or would one more delivery be its last?"""
    queue, _, row = found
    policy = queue.settings.redrive_policy
    last = row.state == READY and policy is not None and row.receives + 1 >= policy.max_receives
    return last or row.expires_at <= now
