"""What follows if a lease ends without a confirmation: another delivery, the dead-letter queue, or the end."""

from __future__ import annotations

from penstock.backoff import backoff_ns
from penstock.engine.decide.draft import Draft, Facts, facts_of
from penstock.engine.queue import Queue
from penstock.engine.rows import AHEAD, Row
from penstock.engine.state import EngineState
from penstock.limits import NEVER_NS, UNBEGUN_MAX
from penstock.model.events import (
    DeadLettered,
    Event,
    Failed,
    FailedForAll,
    Fetched,
    Rescheduled,
    Retried,
    SentAsDead,
    TimedOut,
)
from penstock.model.lifecycle import DELAYED
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos

_NEVER_BEGUN = b"never begun"
_SPREAD, _SPREAD_RANGE = 2_654_435_761, 1 << 32  # Multiplying by the first spreads neighbours over the range.


def give_back(
    draft: Draft,
    queue: Queue,
    sequence: int,
    row: Row,
    delay_ns: Nanos,
    kind: type[Retried] = Retried,
    reason: bytes = b"",
) -> Event:
    """Make a message available again, or end it. `delay_ns`: 0 if the consumer asked for no delay; then that of the
    queue is used. `kind`: the event if the message is to be delivered again. `reason`: the consumer's."""
    settings, now = queue.settings, draft.now
    delay_ns = delay_ns or (_backoff(settings, sequence, row.receives) if settings.retry_delay_ns else 0)
    facts = (now, queue.number, sequence, row.created, row.receives, row.consumer)
    visible_at = min(now + delay_ns, NEVER_NS)
    event: Event
    if row.state == DELAYED:  # A dead letter that its last consumer held: it was moved when it was delivered.
        event = Rescheduled(*facts, visible_at, reason)
    elif not _has_failed(draft, settings, row):
        event = kind(*facts, visible_at, reason)
    else:
        event = _failed(draft, queue, sequence, row, kind, reason)
        if settings.keep == "finished" or settings.redrive_policy:
            draft.end(queue, sequence)
    draft.events.append(event)
    return event


def fail(draft: Draft, queue: Queue, sequence: int, row: Row, reason: bytes) -> None:
    """A worker reports that another delivery would not help: what happens after the last one happens now."""
    if row.state == DELAYED:  # It is a dead letter already.
        give_back(draft, queue, sequence, row, 0, reason=reason)
    else:
        draft.events.append(_failed(draft, queue, sequence, row, Retried, reason))


def end_lease(draft: Draft, queue: Queue, sequence: int, row: Row) -> None:
    """The lease of a worker has run out. One that was never begun does not count, so many times in a row."""
    facts = facts_of(queue, sequence, row._replace(receives=row.receives - 1), draft.now)
    if not row.is_unbegun:
        give_back(draft, queue, sequence, row, 0, TimedOut)
    elif row.times_unbegun < UNBEGUN_MAX:
        draft.events.append(TimedOut(*facts, draft.now, _NEVER_BEGUN, ahead=True))
    elif queue.settings.redrive_policy:
        draft.events.append(dead_letter(draft, queue, sequence, row, reason=_NEVER_BEGUN))
        draft.end(queue, sequence)
    else:
        give_back(draft, queue, sequence, row, 0, TimedOut, _NEVER_BEGUN)


def give_back_unbegun(draft: Draft, queue: Queue, sequence: int, row: Row, delay_ns: Nanos, reason: bytes) -> None:
    """A consumer gives back what it has fetched ahead and not begun."""
    facts = facts_of(queue, sequence, row._replace(receives=row.receives - 1), draft.now)
    draft.events.append(Retried(*facts, min(draft.now + delay_ns, NEVER_NS), reason))


def _has_failed(draft: Draft, settings: QueueSettings, row: Row) -> bool:
    """Whether a message has used up its deliveries. If it was fetched ahead, or its dead-letter queue is in another
    shard, `max_receives` counts too: the last delivery has not moved it."""
    most, policy = settings.deliveries, settings.redrive_policy
    if policy and (row.marks & AHEAD or draft.state.is_elsewhere(policy.dead_letter_queue)):
        most = min(most or policy.max_receives, policy.max_receives)
    return most > 0 and row.receives >= most


def _backoff(settings: QueueSettings, sequence: int, receives: int) -> Nanos:
    """The jitter is derived from the message and the attempt, so that the same decision has the same result."""
    chance = (sequence + receives) * _SPREAD % _SPREAD_RANGE / _SPREAD_RANGE
    first_ns, longest_ns = settings.retry_delay_ns, settings.retry_delay_max_ns
    return backoff_ns(max(receives, 1), first_ns, longest_ns, chance, settings.retry_backoff, settings.retry_jitter)


def _failed(draft: Draft, queue: Queue, sequence: int, row: Row, kind: type[Retried], reason: bytes) -> Event:
    """The event for a message that has used up its deliveries."""
    if queue.settings.redrive_policy:
        return dead_letter(draft, queue, sequence, row, reason=reason)
    facts = facts_of(queue, sequence, row, draft.now)
    is_worker = kind.kind.row.whose == "workers"
    if is_worker and queue.settings.confirmations <= 1:
        return Failed(*facts, reason)
    consumer = queue.worker(sequence, row) if is_worker else row.consumer
    return FailedForAll(*facts[:-1], consumer, reason)


def dead_letter(
    draft: Draft, queue: Queue, sequence: int, row: Row, held_until: Nanos | None = None, reason: bytes = b""
) -> Event:
    """Move a message to the dead-letter queue, in one event. `held_until`: its last consumer holds it until then."""
    policy = queue.settings.redrive_policy
    assert policy is not None
    target = draft.queue(policy.dead_letter_queue)
    if target is None:
        facts = facts_of(queue, sequence, row, draft.now)
        return _dead_letter_elsewhere(draft.state, facts, policy.dead_letter_queue, held_until, reason)
    return DeadLettered(
        *facts_of(queue, sequence, row, draft.now),
        fetched=held_until is not None,
        visible_at=draft.now if held_until is None else held_until,
        expires_at=min(draft.now + target.settings.retention_ns, NEVER_NS),
        to_queue=target.number,
        to_sequence=draft.take(target),
        reason=reason,
    )


def _dead_letter_elsewhere(
    state: EngineState, facts: Facts, name: str, held_until: Nanos | None, reason: bytes
) -> Event:
    """Let a message leave for a dead-letter queue of another shard. One that its last consumer holds stays here until
    its lease ends, so that the consumer can still finish it."""
    assert state.is_elsewhere(name), "removing a dead-letter queue removes the policies that name it"
    if held_until is not None:
        return Fetched(*facts, held_until)
    return SentAsDead(*facts, state.home(name), name.encode(), reason)
