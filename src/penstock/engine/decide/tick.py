"""Decide what is due: messages that expire, and leases that end."""

from __future__ import annotations

from penstock.engine.decide.draft import Draft
from penstock.engine.decide.facts import facts_of
from penstock.engine.decide.retry import give_back
from penstock.engine.queue import Queue
from penstock.limits import TICK_EVENTS_MAX
from penstock.model.answers import Done
from penstock.model.commands import Tick
from penstock.model.events import Expired, GivenBack, TimedOut
from penstock.model.lifecycle import LEASED


def tick(draft: Draft, _: Tick) -> Done:
    events, now = draft.events, draft.now
    draft.done_with = set()
    for queue in draft.state.due(now):
        for sequence, row in queue.overdue_lifetimes(TICK_EVENTS_MAX - len(events), now):
            events.append(Expired(*facts_of(queue, sequence, row, now)))
        for sequence, row in queue.overdue_leases(TICK_EVENTS_MAX - len(events), now):
            if row.expires_at > now:  # Otherwise it expires, now or with the next tick.
                give_back(draft, queue, sequence, row, 0, TimedOut)
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
