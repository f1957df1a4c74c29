"""Events of recurring schedules. Readers of the Event Log see only the messages that are logged for them.

Each says when the schedule runs next, so that a replay asks no calendar: time zones may have changed by then.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.model.event import Event
from penstock.model.kinds import Kind
from penstock.model.schedules import Schedule
from penstock.model.values import Nanos


class ScheduleSet(Event, frozen=True, gc=False):
    """A schedule was created or changed. What it has done so far stays known."""

    kind: ClassVar[Kind] = Kind.SCHEDULE_SET
    schedule: str
    definition: Schedule
    next: Nanos


class ScheduleRan(Event, frozen=True, gc=False):
    """A schedule has published its message, which is logged before it in the same batch. `planned`: the tick it was
    published for; of several, the last. `missed`: ticks before it that no message was published for."""

    kind: ClassVar[Kind] = Kind.SCHEDULE_RAN
    schedule: str
    planned: Nanos
    next: Nanos
    runs: int
    missed: int
    queue: int
    sequence: int


class ScheduleSkipped(Event, frozen=True, gc=False):
    """Ticks have passed without a message, or could not be published. `due_at`: when the schedule is looked at again;
    later than `next` if that tick is tried again."""

    kind: ClassVar[Kind] = Kind.SCHEDULE_SKIPPED
    schedule: str
    next: Nanos
    due_at: Nanos
    missed: int
    error: str = ""


class ScheduleRemoved(Event, frozen=True, gc=False):
    kind: ClassVar[Kind] = Kind.SCHEDULE_REMOVED
    schedule: str


SCHEDULE_EVENTS: tuple[type[Event], ...] = (ScheduleSet, ScheduleRan, ScheduleSkipped, ScheduleRemoved)
