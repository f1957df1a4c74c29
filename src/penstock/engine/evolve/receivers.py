"""Deliveries to receivers and their results; also for consumers of which several must confirm a message."""

from __future__ import annotations

from penstock.engine.state import EngineState
from penstock.model.events import (
    DeclinedForOne,
    Delivered,
    DeliveredRun,
    FailedForAll,
    GivenBack,
    HandedToReceiver,
    HandedToReceiverRun,
    InvalidatedForOne,
    ReceiverMoved,
    ResultCarried,
    ResultStored,
)
from penstock.model.values import Position


def delivered(state: EngineState, event: Delivered, _: Position) -> None:
    queue, _row = state.message(event)
    facts = (event.consumer, event.sequence, event.receives, event.visible_at)
    if event.leased:
        queue.groups.lend(*facts)
        state.arm(queue, event.visible_at)
    else:
        queue.groups.deliver(*facts)


def delivered_run(state: EngineState, event: DeliveredRun, _: Position) -> None:
    queue, time = state.queues[event.queue], event.visible_at
    run = (event.consumer[0], event.sequence[0], len(event.sequence))
    queue.groups.deliver_run(*run, time, lend=event.leased)
    if event.leased:
        state.arm(queue, time)


def handed_to_receiver(state: EngineState, event: HandedToReceiver, _: Position) -> None:
    queue, _row = state.message(event)
    queue.groups.move(event.consumer, event.sequence)


def handed_to_receiver_run(state: EngineState, event: HandedToReceiverRun, _: Position) -> None:
    state.queues[event.queue].groups.move(event.consumer[0], event.sequence[-1])


def given_back(state: EngineState, event: GivenBack, _: Position) -> None:
    queue, _row = state.message(event)
    queue.groups.give_back(event.consumer, event.sequence, event.receives, event.visible_at)


def refused_for_one(state: EngineState, event: InvalidatedForOne | DeclinedForOne, _: Position) -> None:
    queue, _row = state.message(event)
    queue.groups.decline(event.consumer, event.sequence)


def failed_for_all(state: EngineState, event: FailedForAll, _: Position) -> None:
    """End a message for workers. In a queue that keeps everything, receivers that are not done with it still get
    it."""
    queue, row = state.message(event)
    if queue.settings.keep == "finished":
        state.remove(queue, event.sequence, row)
        return
    if queue.groups.has(event.consumer, event.sequence):
        queue.groups.decline(event.consumer, event.sequence)
    queue.keep(event.sequence, row, row.receives, row.holder(event.time))


def result_stored(state: EngineState, event: ResultStored, position: Position) -> None:
    queue, _row = state.message(event)
    queue.groups.store(event.consumer, event.sequence, position, len(event.result))


def result_carried(state: EngineState, event: ResultCarried, position: Position) -> None:
    state.queues[event.queue].groups.store(event.consumer, event.sequence, position, len(event.result))


def receiver_moved(state: EngineState, event: ReceiverMoved, _: Position) -> None:
    state.queues[event.queue].groups.move(event.consumer, event.sequence)
