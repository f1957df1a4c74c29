"""What is not about one message: queues, names, tokens, recurring schedules, and requests that were answered."""

from __future__ import annotations

from penstock.engine.answered import AnsweredRequest
from penstock.engine.queue import Queue
from penstock.engine.state import EngineState
from penstock.model.events import Answered, NameDefined, NameForgotten, QueueChanged, QueueCreated, QueueRemoved
from penstock.model.schedules import ScheduleRan, ScheduleRemoved, ScheduleSet, ScheduleSkipped
from penstock.model.tokens import TokenRevoked, TokenSet
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


def token_set(state: EngineState, event: TokenSet, _: Position) -> None:
    state.tokens.put(event.token, event.definition)


def token_revoked(state: EngineState, event: TokenRevoked, _: Position) -> None:
    state.tokens.remove(event.token)


def schedule_set(state: EngineState, event: ScheduleSet, _: Position) -> None:
    set_at = event.time if state.queue_step > 1 else 0  # Alone, nobody asks.
    state.schedules.define(event.schedule, event.definition, event.next, set_at)


def schedule_ran(state: EngineState, event: ScheduleRan, _: Position) -> None:
    planned = state.schedules.by_name[event.schedule]
    planned.runs += event.runs
    planned.missed += event.missed
    planned.last_run, planned.last_place, planned.error = event.time, (event.queue, event.sequence), ""
    planned.next = planned.due_at = event.next
    state.schedules.put(planned)


def schedule_skipped(state: EngineState, event: ScheduleSkipped, _: Position) -> None:
    planned = state.schedules.by_name[event.schedule]
    planned.missed += event.missed
    planned.next, planned.due_at = event.next, event.due_at
    planned.error = event.error or planned.error
    state.schedules.put(planned)


def schedule_removed(state: EngineState, event: ScheduleRemoved, _: Position) -> None:
    state.schedules.remove(event.schedule)


def answered(state: EngineState, event: Answered, _: Position) -> None:
    state.answered.forget(event.forgotten, event.key)
    state.answered.add(event.key, AnsweredRequest(event.time, event.digest, event.answer))
