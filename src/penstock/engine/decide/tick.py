"""What time brings about: messages expire, and leases end."""

from __future__ import annotations

from typing import TypeGuard

from penstock.engine.decide.facts import facts_of
from penstock.engine.decide.retry import returned
from penstock.engine.queue import Queue
from penstock.engine.state import EngineState
from penstock.limits import TICK_EVENTS_MAX
from penstock.model.answers import Decision, Done
from penstock.model.commands import Tick
from penstock.model.events import DeadLettered, Event, Expired, Failed, GivenBack, MessageEvent
from penstock.model.lifecycle import LEASED
from penstock.model.values import Nanos


def tick(engine: EngineState, _: Tick, now: Nanos) -> Decision:
    events: list[Event] = []
    taken: dict[int, int] = {}  # Sequences given out in dead-letter queues by this very decision.
    for queue in engine.due(now):
        for sequence, row in queue.overdue_lifetimes(TICK_EVENTS_MAX - len(events), now):
            events.append(Expired(*facts_of(queue, sequence, row, now)))
        for sequence, row in queue.overdue_leases(TICK_EVENTS_MAX - len(events), now):
            if row.expires_at > now:  # Else it expires, now or with the next tick.
                events.append(returned(engine, queue, sequence, row, now, 0, taken))
        _end_leases_alone(engine, queue, now, events, taken)
        if len(events) >= TICK_EVENTS_MAX:
            break
    return Decision(events, Done())


def _end_leases_alone(
    engine: EngineState, queue: Queue, now: Nanos, events: list[Event], taken: dict[int, int]
) -> None:
    """The leases of consumers that are to confirm the same messages. A message may fail with any of them."""
    overdue = queue.groups.overdue(TICK_EVENTS_MAX - len(events), now)
    failed = {each.sequence for each in events if _takes_away(each, queue)} if overdue else set()
    for sequence, consumer, slot in overdue:
        row = queue.rows.get(sequence)
        if row is None or row.expires_at <= now or sequence in failed:
            continue
        lease = row._replace(state=LEASED, receives=slot.size, consumer=consumer)
        event = returned(engine, queue, sequence, lease, now, 0, taken, GivenBack)
        events.append(event)
        if _takes_away(event, queue):
            failed.add(sequence)


def _takes_away(event: Event, queue: Queue) -> TypeGuard[MessageEvent]:
    """Is there nothing left of a message of this queue?"""
    if isinstance(event, Failed):
        return event.queue == queue.number and queue.settings.keep == "finished"
    return isinstance(event, DeadLettered) and event.queue == queue.number
