"""What other shards are asked to forget. The promise is in the batch of what caused it, and a courier takes it there:
so it is kept whatever crashes, and however long another shard is away.

What a shard has learned after the promise was made is not meant by it: a schedule may have moved back, and a queue
may have been created again.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.engine.decide.draft import Draft
from penstock.model.events import QueueChanged
from penstock.model.schedules import ScheduleRemoved
from penstock.model.shard_events import Promised
from penstock.model.values import Nanos, Wish


def promise(draft: Draft, wish: Wish, name: str) -> None:
    """Ask all other shards."""
    state = draft.state
    others = [shard for shard in range(state.queue_step) if shard != state.shard]
    draft.events += [Promised(draft.now, shard, wish, name.encode()) for shard in others]


def keep_promise(draft: Draft, wish: int, name: str, made_at: Nanos) -> None:
    """`made_at`: when another shard asked for it, by the clock of this one."""
    if wish == Wish.FORGET_SCHEDULE:
        planned = draft.state.schedules.by_name.get(name)
        if planned and planned.set_at <= made_at:
            draft.events.append(ScheduleRemoved(draft.now, name))
    elif wish == Wish.FORGET_DEAD_LETTERS:
        remove_policies(draft, name, made_at)


def remove_policies(draft: Draft, name: str, until: Nanos) -> None:
    """Messages of queues that had this dead-letter queue until then are dropped from now on when they fail."""
    for other in draft.state.queues.values():
        policy = other.settings.redrive_policy
        if policy and policy.dead_letter_queue == name and other.name != name and other.changed <= until:
            draft.events.append(QueueChanged(draft.now, other.number, replace(other.settings, redrive_policy=None)))
