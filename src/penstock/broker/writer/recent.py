"""How messages have ended lately, so that a client that asks soon after need not wait for a search of the log.

Nothing is noted until somebody asks, and an event is noted as it is: events are indexed by message when somebody asks
again. There are two generations; when the newer one is full, the older one is dropped. A message is answered for only
if everything about it was noted since it was logged, and it was in one queue all the time.
"""

from __future__ import annotations

from typing import Any

from penstock.limits import RECENT_BYTES_MAX, RECENT_MESSAGES_MAX
from penstock.model.events import Event, MessageRun, QueueRemoved
from penstock.model.happening import Happening, happening, happening_in
from penstock.model.kinds import ENDS, MOVES, Kind
from penstock.model.shard_events import Routed
from penstock.model.values import Nanos, Place

NOTED = ENDS | MOVES | {Kind.QUEUED, Kind.ROUTED, Kind.QUEUE_REMOVED}


class _Generation:
    def __init__(self, began: Nanos) -> None:
        self.began = began
        self.asked = False
        self.messages = 0
        self.bytes = 0  # Of their results.
        self.ends: dict[Place, tuple[Any, int]] = {}  # The event, and the index in it if it is a run.
        self.elsewhere: set[Place] = set()  # Messages that were moved, or have copies.
        self.removed: set[int] = set()  # Queues.
        self._fresh: list[Any] = []  # Events that are not indexed yet.

    @property
    def is_full(self) -> bool:
        return self.messages >= RECENT_MESSAGES_MAX or self.bytes >= RECENT_BYTES_MAX

    def note(self, event: Event) -> None:
        self._fresh.append(event)
        self.messages += event.messages if isinstance(event, Routed) else event.records
        self.bytes += len(getattr(event, "result", b""))

    def index(self) -> None:
        fresh, self._fresh = self._fresh, []
        for event in fresh:
            if isinstance(event, QueueRemoved):
                self.removed.add(event.queue)
            elif isinstance(event, MessageRun):
                for at, sequence in enumerate(event.sequence):
                    self.ends[event.queue, sequence] = (event, at)
            elif event.kind in ENDS:
                self.ends[event.queue, event.sequence] = (event, 0)
            else:
                self._index_elsewhere(event)

    def _index_elsewhere(self, event: Any) -> None:
        if isinstance(event, Routed):
            self.elsewhere |= {(event.queue, event.sequence + at) for at in range(event.messages)}
        elif isinstance(event.queue, list):
            self.elsewhere.update(zip(event.to_queue, event.to_sequence, strict=True))
        else:
            self.elsewhere |= {(event.queue, event.sequence), (event.to_queue, event.to_sequence)}


class Recent:
    def __init__(self) -> None:
        self.is_wanted = False
        self._generations: list[_Generation] = []  # The older one first.

    def note(self, event: Event) -> None:
        """For events of the kinds in `NOTED`, while `is_wanted`."""
        newest = self._generations[-1]
        newest.note(event)
        if newest.is_full:
            if not any(each.asked for each in self._generations):
                self.clear()
                return
            self._generations = [newest, _Generation(event.time)]

    def clear(self) -> None:
        """Forget everything: nobody asks, or what was noted will never be durable."""
        self.is_wanted = False
        self._generations = []

    def ask(self, now: Nanos) -> None:
        """Somebody is about to ask. What happens from now on is noted."""
        if not self.is_wanted:
            self.is_wanted = True
            self._generations = [_Generation(now)]
        for generation in self._generations:
            generation.asked = True
            generation.index()

    def end_of(self, place: Place) -> Happening | None:
        """How a message ended that is in no queue any more, if that is certain."""
        for generation in reversed(self._generations):
            if place in generation.ends:
                event, at = generation.ends[place]
                end = happening_in(event, at) if isinstance(event, MessageRun) else happening(event)
                return end if self.is_alone(place, end.created) else None
        return None

    def is_alone(self, place: Place, created: Nanos) -> bool:
        """Is it certain that a message was at no other place since it was logged?"""
        return created > self._generations[0].began and not any(
            place in each.elsewhere or place[0] in each.removed for each in self._generations
        )
