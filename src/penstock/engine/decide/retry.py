"""What becomes of a message whose lease ends without a confirmation: another delivery, the dead-letter queue, or
nothing."""

from __future__ import annotations

from penstock.engine.decide.facts import facts_of
from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.limits import NEVER_NS
from penstock.model.events import DeadLettered, Event, Failed, FailedForAll, Rescheduled, Retried
from penstock.model.lifecycle import DELAYED
from penstock.model.values import Nanos


def returned(
    engine: EngineState,
    queue: Queue,
    sequence: int,
    row: Row,
    now: Nanos,
    delay_ns: Nanos,
    taken: dict[int, int],
    kind: type[Retried] = Retried,
) -> Event:
    """`kind`: the event if the message is delivered again."""
    facts = facts_of(queue, sequence, row, now)
    if row.state == DELAYED:  # A dead letter that its last consumer still had: it was moved when it was delivered.
        return Rescheduled(*facts, visible_at=min(now + delay_ns, NEVER_NS))
    settings = queue.settings
    if settings.deliveries and row.receives >= settings.deliveries:
        if settings.redrive_policy:
            return dead_letter(engine, queue, sequence, row, now, taken, held_until=None)
        is_worker = kind.kind.row.whose == "workers"
        if is_worker and settings.confirmations <= 1:
            return Failed(*facts)
        consumer = queue.worker(sequence, row) if is_worker else row.consumer
        return FailedForAll(*facts[:-1], consumer)
    return kind(*facts, visible_at=min(now + delay_ns, NEVER_NS))


def dead_letter(
    engine: EngineState,
    queue: Queue,
    sequence: int,
    row: Row,
    now: Nanos,
    taken: dict[int, int],
    held_until: Nanos | None,
) -> DeadLettered:
    """Move a message, in one event. `held_until`: its last consumer has it until then."""
    policy = queue.settings.redrive_policy
    assert policy is not None
    target = engine.queue(policy.dead_letter_queue)
    assert target is not None, "removing a dead-letter queue removes the policies that name it"
    to_sequence = taken.get(target.number, target.last_sequence) + 1
    taken[target.number] = to_sequence
    return DeadLettered(
        *facts_of(queue, sequence, row, now),
        fetched=held_until is not None,
        visible_at=now if held_until is None else held_until,
        expires_at=min(now + target.settings.retention_ns, NEVER_NS),
        to_queue=target.number,
        to_sequence=to_sequence,
    )
