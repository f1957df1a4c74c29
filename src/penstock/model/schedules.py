"""Recurring schedules: what a schedule publishes, and when."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec
from msgspec import Struct

from penstock.model.access import EVERYTHING, Access
from penstock.model.commands import Command
from penstock.model.kinds import Event, Kind
from penstock.model.settings import QueueSettings
from penstock.model.values import Nanos

CatchUp = Literal["one", "all", "none"]


class Schedule(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A message that is published again and again, to a queue or to topics: by a cron expression, or at an
    interval."""

    queue: str = ""  # Empty: to the topics.
    topics: tuple[str, ...] = ()
    create: QueueSettings | None = None  # The settings of queues that are created for the topics.
    body: bytes = b""
    content_type: str = ""
    object: str = ""
    key: bytes = b""
    headers: bytes = b""
    priority: int = 0
    delay_ns: Nanos | None = None
    expires_ns: Nanos | None = None
    cron: str = ""  # Empty: at an interval.
    time_zone: str = "UTC"
    every_ns: Nanos = 0
    start: Nanos | None = None  # The interval is counted from here; absent: from when the schedule was set.
    catch_up: CatchUp = "one"  # What becomes of ticks that nobody was there for.
    paused: bool = False

    @property
    def timing(self) -> tuple[str, str, Nanos, Nanos | None]:
        """All that decides when it runs."""
        return self.cron, self.time_zone, self.every_ns, self.start

    @property
    def size(self) -> int:
        """About how many bytes of memory its texts take."""
        return len(self.body) + len(self.key) + len(self.headers) + sum(map(len, self.topics))

    def to_store(self) -> dict[str, Any]:
        """As it is written to the disk."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields | {"create": self.create.to_store()} if self.create else fields


# ── Events: readers of the Event Log see only the messages that are logged for them ───────────────────────────
# Each says when the schedule runs next, so that a replay asks no calendar: time zones may have changed by then.


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


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────────────────


class SetSchedule(Command, frozen=True):
    """Create a schedule, or change it. It goes on as planned if nothing changes that decides when it runs."""

    name: str
    definition: Schedule


class DeleteSchedule(Command, frozen=True):
    name: str


class DescribeSchedule(Command, frozen=True):
    name: str


class ListSchedules(Command, frozen=True):
    offset: int = 0
    limit: int = 1
    access: Access = EVERYTHING  # Only what it sees.


class RunSchedule(Command, frozen=True):
    """Publish the message of a schedule now, out of turn. The answer is that of `PublishTopics`."""

    name: str


class RunDue(Command, frozen=True):
    """Publish the message of the schedule that is due first, if one is due, and plan its next tick."""
