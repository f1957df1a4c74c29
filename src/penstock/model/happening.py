"""What happened to one message, from an event about it alone or about many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from penstock.model.events import CameFrom, DeadLettered, Event, MessageEvent, MessageRun, Moved, QueueRemoved, Sent
from penstock.model.kinds import Kind, kinds_where
from penstock.model.values import Nanos, Place

# What readers of the Event Log see, and what changes when a message is visible. The rest is housekeeping.
REPORTED = kinds_where(lambda row: row.letters or "visible_at" in row.stores)


class Happening(Struct, frozen=True, gc=False, array_like=True):
    kind: Kind
    time: Nanos
    created: Nanos = 0  # When the message was logged.
    consumer: int = 0
    result: bytes = b""
    is_held: bool = False  # A dead letter that its last consumer still has.
    shard: int = 0  # Where it was sent, for these kinds.


def happening(event: MessageEvent) -> Happening:
    result = getattr(event, "result", b"")
    is_held = isinstance(event, DeadLettered) and event.fetched
    shard = event.shard if isinstance(event, Sent) else 0
    return Happening(event.kind, event.time, event.created, event.consumer, result, is_held, shard)


def happening_in(run: MessageRun, at: int) -> Happening:
    return Happening(run.kind, run.time, run.created[at], run.consumer[at])


def happenings(events: Iterable[Event], place: Place) -> Iterator[Happening]:
    """What happened to the message of this place, whose events these are. Copies in channels are other messages."""
    published = place
    for event in events:
        if isinstance(event, QueueRemoved):
            if event.queue == place[0]:
                yield Happening(Kind.DELETED, event.time)
        elif isinstance(event, CameFrom) and (event.to_queue, event.to_sequence) == published:
            place = (event.queue, event.sequence)
        elif isinstance(event, MessageEvent) and (event.queue, event.sequence) == place and event.kind in REPORTED:
            yield happening(event)
            if isinstance(event, DeadLettered | Moved):
                place = (event.to_queue, event.to_sequence)
