"""Recurring schedules that are set and removed, that run, and that miss a tick."""

from __future__ import annotations

from penstock.engine.state import EngineState
from penstock.model.schedule_events import ScheduleRan, ScheduleRemoved, ScheduleSet, ScheduleSkipped
from penstock.model.values import Position


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
