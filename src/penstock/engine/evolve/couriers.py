"""Messages that leave for another shard, arrive from one, or are known to be there."""

from __future__ import annotations

from itertools import accumulate

from penstock.engine.evolve.arrivals import arrive
from penstock.engine.history import note, note_run
from penstock.engine.rows import Row
from penstock.engine.state import EngineState
from penstock.model.answers import Owed
from penstock.model.events import Arrived, CameFrom, CopiedFrom, Sent, SentAsDead
from penstock.model.lifecycle import DELAYED, READY
from penstock.model.shard_events import (
    Collected,
    Decided,
    Learned,
    LearnedRun,
    Promised,
    Routed,
    Taken,
    Versioned,
)
from penstock.model.values import NOWHERE, Cursor, KeyedRun, Position


def routed(state: EngineState, _: Routed, position: Position) -> None:
    """A promise to other shards, which they find in the log."""
    state.couriers.routed += 1
    state.couriers.promised = position


def versioned(state: EngineState, _: Versioned, position: Position) -> None:
    """As `routed`, for the shards that answer for the keys."""
    state.couriers.routed += 1
    state.couriers.promised = position


def learned(state: EngineState, event: Learned, position: Position) -> None:
    facts = (event.queue, event.sequence, event.created, position)
    note(state.history, state.names.texts[event.object], event.key, event.content, *facts)


def learned_run(state: EngineState, event: LearnedRun, position: Position) -> None:
    sizes = [len(content) + len(key) for content, key in zip(event.contents, event.keys, strict=True)]
    positions = list(accumulate(sizes[:-1], initial=position))
    facts = (event.queue, event.sequence[0], event.created, positions)
    about = state.names.texts[event.object]
    note_run(state.history, KeyedRun(about, event.keys, event.contents, *facts, sequences=event.sequence))


def sent(state: EngineState, event: Sent, _: Position) -> None:
    queue, row = state.message(event)
    place = state.remove(queue, event.sequence, row)
    outbox, texts = state.couriers.outbox(event.shard), state.names.texts
    outbox.add(
        Owed(
            serial=outbox.last + 1,
            place=place,
            origin=queue.name if place[0] == queue.number else state.name_of(place[0]),
            target=event.target.decode(),
            time=event.time,
            created=row.created,
            visible_at=row.visible_at if row.state == DELAYED else event.time,
            priority=row.priority,
            content_type=texts[row.content_type],
            sender=texts[row.sender],
            object=texts[row.object],
            topics=texts[row.topics],
            lease_ns=row.lease_ns,
            position=row.position,
            body_bytes=row.body_bytes,
            key_bytes=row.key_bytes,
            headers_bytes=row.headers_bytes,
            reason=event.reason.decode(errors="replace") if isinstance(event, SentAsDead) else "",
        )
    )
    state.couriers.away.setdefault(place[0], {})[event.shard] = outbox.last


def promised(state: EngineState, event: Promised, position: Position) -> None:
    """It goes the way of messages that leave, but there is none."""
    outbox, name, time = state.couriers.outbox(event.shard), event.target.decode(), event.time
    facts = ("", name, time, time, time, event.wish, "", "", "", "", 0)
    outbox.add(Owed(outbox.last + 1, NOWHERE, *facts, position, 0, 0, 0))


def taken(state: EngineState, event: Taken, _: Position) -> None:
    state.couriers.outbox(event.shard).forget(event.serial)


def collected(state: EngineState, event: Collected, _: Position) -> None:
    state.couriers.cursors[event.shard] = Cursor(event.offset, event.serial)


def decided(state: EngineState, event: Decided, _: Position) -> None:
    state.outcomes.note(event)


def arrived(state: EngineState, event: Arrived, position: Position) -> None:
    """Like a message that is logged, but no version of its object: that is where it was published."""
    row = Row(
        visible_at=event.visible_at,
        receives=0,
        consumer=0,
        state=READY if event.visible_at <= event.time else DELAYED,
        marks=0,
        key_bytes=len(event.key),
        priority=event.priority,
        position=position,
        created=event.created,
        expires_at=event.expires_at,
        body_bytes=len(event.body),
        headers_bytes=len(event.headers),
        content_type=event.content_type,
        sender=event.sender,
        lease_ns=event.lease_ns,
        object=event.object,
        topics=event.topics,
    )
    arrive(state, state.queues[event.queue], event.sequence, row, event.digest)


def copied_from(state: EngineState, event: CopiedFrom, _: Position) -> None:
    """Only readers of the log need it."""
    state.message(event)


def came_from(state: EngineState, event: CameFrom, _: Position) -> None:
    state.message(event)
    origin, place = (event.to_queue, event.to_sequence), (event.queue, event.sequence)
    state.moved[origin] = place
    state.reasons.note(place, event.reason)
    state.origins[place] = origin
    if event.to_queue not in state.queues:
        state.couriers.origins[event.to_queue] = event.origin.decode()
