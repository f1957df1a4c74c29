"""Queues that are created, changed and removed, and names that get a number or lose it."""

from __future__ import annotations

from penstock.engine.queue import Queue
from penstock.engine.state import EngineState
from penstock.model.events import NameDefined, NameForgotten, QueueChanged, QueueCreated, QueueRemoved
from penstock.model.values import Position


def queue_created(state: EngineState, event: QueueCreated, _: Position) -> None:
    assert event.queue == state.last_queue + state.queue_step, "queue numbers have no gaps"
    state.last_queue = event.queue
    created = event.time if state.queue_step > 1 else 0  # In one shard their numbers have the same order.
    state.queues[event.queue] = Queue(event.queue, event.name, event.settings, created)
    state.numbers[event.name] = event.queue
    state.routing.assign(event.queue, event.settings.topics)


def queue_changed(state: EngineState, event: QueueChanged, _: Position) -> None:
    queue = state.queues[event.queue]
    queue.settings = event.settings
    queue.changed = event.time if state.queue_step > 1 else 0
    state.routing.assign(event.queue, event.settings.topics)


def queue_removed(state: EngineState, event: QueueRemoved, _: Position) -> None:
    queue = state.queues.pop(event.queue)
    del state.numbers[queue.name]
    state.routing.remove(event.queue)
    for place in [place for place in state.origins if place[0] == event.queue]:
        del state.moved[state.origins.pop(place)]
        state.reasons.forget(place)


def name_defined(state: EngineState, event: NameDefined, _: Position) -> None:
    state.names.define(event.number, event.text)


def name_forgotten(state: EngineState, event: NameForgotten, _: Position) -> None:
    state.names.forget(event.number)
    state.topics.forget(event.number)
