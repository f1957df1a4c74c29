"""Messages in a queue: leased, given back, finished, moved, set aside, gone."""

from __future__ import annotations

from penstock.engine.evolve.arrivals import arrive
from penstock.engine.groups import WORKERS
from penstock.engine.queue import Queue
from penstock.engine.rows import NAMELESS
from penstock.engine.state import EngineState
from penstock.limits import NEVER_NS
from penstock.model.events import (
    Carried,
    Completed,
    Damaged,
    DeadLettered,
    Declined,
    Extended,
    Fetched,
    FetchedRun,
    HandedOverRun,
    Invalidated,
    MessageEvent,
    Moved,
    Rescheduled,
    Restored,
    Retried,
    Succeeded,
    SucceededRun,
    TimedOut,
)
from penstock.model.lifecycle import DAMAGED, DELAYED, LEASED, READY
from penstock.model.values import Position


def fetched(state: EngineState, event: Fetched, _: Position) -> None:
    queue, row = state.message(event)
    queue.lease(event.sequence, row, event.visible_at, event.receives, event.consumer, ahead=event.ahead)
    if event.visible_at < queue.armed:
        state.arm(queue, event.visible_at)


def fetched_run(state: EngineState, event: FetchedRun, _: Position) -> None:
    queue = state.queues[event.queue]
    queue.lease_run(event.sequence[0], event.visible_at, event.receives, event.consumer[0], ahead=event.ahead)
    state.arm(queue, event.visible_at)


def handed_over_run(state: EngineState, event: HandedOverRun, _: Position) -> None:
    state.queues[event.queue].hand_over_run(event.sequence[0], len(event.sequence))


def succeeded_run(state: EngineState, event: SucceededRun, _: Position) -> None:
    state.queues[event.queue].finish_many(event.sequence)


def retried(state: EngineState, event: Retried, _: Position) -> None:
    queue, row = state.message(event)
    row_state = READY if event.visible_at <= event.time else DELAYED
    queue.change(event.sequence, row, row_state, event.visible_at, event.receives, 0)
    if row_state == DELAYED:
        state.arm(queue, event.visible_at)


def timed_out(state: EngineState, event: TimedOut, position: Position) -> None:
    if event.ahead:
        queue, row = state.message(event)
        queue.change(event.sequence, row, READY, event.visible_at, event.receives, 0, row.marks_unbegun)
    else:
        retried(state, event, position)


def done_with(state: EngineState, event: MessageEvent, position: Position) -> None:
    """No worker gets the message again; receivers may."""
    queue, row = state.message(event)
    settings = queue.settings
    complete = settings.confirmations <= 1 or (type(event) is Succeeded and event.complete)
    if row.state == DAMAGED or (settings.keep == "finished" and complete):
        state.remove(queue, event.sequence, row)
        return
    queue.keep(event.sequence, row, event.receives, event.consumer)
    if type(event) is Succeeded and not event.complete:
        queue.groups.store(WORKERS, event.sequence, position, len(event.result))


def refused(state: EngineState, event: Invalidated | Declined, _: Position) -> None:
    """No worker gets the message again."""
    queue, row = state.message(event)
    if queue.groups.owes(event.consumer, event.sequence):  # Earlier versions logged it for one of several consumers.
        queue.groups.decline(event.consumer, event.sequence)
    elif queue.settings.keeps and row.state != DAMAGED:
        queue.keep(event.sequence, row, row.receives, row.holder(event.time))
    else:
        state.remove(queue, event.sequence, row)


def completed(state: EngineState, event: Completed, _: Position) -> None:
    queue, row = state.message(event)
    if queue.settings.keep == "all":
        queue.keep(event.sequence, row, row.receives, row.holder(event.time))
    else:
        state.remove(queue, event.sequence, row)


def extended(state: EngineState, event: Extended, _: Position) -> None:
    queue, row = state.message(event)
    if queue.groups.owes(event.consumer, event.sequence):
        _extended_alone(state, queue, event)
    else:
        assert row.state in (LEASED, DELAYED), "only a consumer that holds a message can extend its lease"
        queue.extend(event.sequence, row, event.visible_at, begun=event.begun)
        state.arm(queue, event.visible_at)


def _extended_alone(state: EngineState, queue: Queue, event: Extended) -> None:
    """Extend the lease of one of several consumers that must confirm."""
    facts = (event.consumer, event.sequence, event.receives, event.visible_at)
    if queue.groups.has(event.consumer, event.sequence):
        queue.groups.lend(*facts)
        state.arm(queue, event.visible_at)
    else:
        queue.groups.deliver(*facts)


def rescheduled(state: EngineState, event: Rescheduled | Restored, _: Position) -> None:
    queue, row = state.message(event)
    if event.reason and (event.queue, event.sequence) in state.origins:
        state.reasons.note((event.queue, event.sequence), event.reason)
    row_state = READY if event.visible_at <= event.time else DELAYED
    queue.change(event.sequence, row, row_state, event.visible_at, row.receives, 0)
    state.arm(queue, event.visible_at if row_state == DELAYED else NEVER_NS)


def damaged(state: EngineState, event: Damaged, _: Position) -> None:
    queue, row = state.message(event)
    state.damaged_in.add(queue.number)
    queue.set_aside(event.sequence, row, event.consumer)  # In replay the row may still name an earlier consumer.


def restored(state: EngineState, event: Restored, position: Position) -> None:
    if event.visible_at == NEVER_NS:
        queue, row = state.message(event)
        queue.keep(event.sequence, row, row.receives, row.consumer)
    else:
        rescheduled(state, event, position)


def ended(state: EngineState, event: MessageEvent, _: Position) -> None:
    queue, row = state.message(event)
    state.remove(queue, event.sequence, row)


def dead_lettered(state: EngineState, event: DeadLettered, _: Position) -> None:
    # If the last delivery is part of the event, its consumer holds the message until it becomes visible again.
    _move(state, event, event.consumer if event.fetched else 0, is_held=event.fetched)
    state.reasons.note((event.to_queue, event.to_sequence), event.reason)


def moved(state: EngineState, event: Moved, _: Position) -> None:
    _move(state, event, 0, is_held=False)


def _move(state: EngineState, event: DeadLettered | Moved, consumer: int, *, is_held: bool) -> None:
    """Move a message to another queue, where its deliveries count from 0. Its id stays valid."""
    queue, row = state.message(event)
    if state.names.are_swept:
        state.names.keep(row.names)  # The sweep may have passed the new queue, but not yet the old one.
    digest = queue.digests.by_sequence.get(event.sequence)
    origin = state.remove(queue, event.sequence, row)
    target = state.queues[event.to_queue]
    row_state = READY if event.visible_at <= event.time else DELAYED
    moved = row._replace(
        visible_at=event.visible_at,
        receives=0,
        consumer=consumer,
        state=row_state,
        marks=NAMELESS if is_held and not consumer else 0,
        expires_at=event.expires_at,
    )
    arrive(state, target, event.to_sequence, moved, digest)
    state.moved[origin] = (event.to_queue, event.to_sequence)
    state.origins[event.to_queue, event.to_sequence] = origin


def carried(state: EngineState, event: Carried, position: Position) -> None:
    """Update the position of a message: its own, or that of a message with the same extent."""
    if event.to_queue:
        sibling = state.queues[event.to_queue].rows.get(event.to_sequence)
        assert sibling is not None, f"{event} refers to a message that does not exist"
        position = sibling.position
    state.queues[event.queue].rows.move(event.sequence, position)
