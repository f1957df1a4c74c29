"""Commands for recurring schedules: see `commands`."""

from __future__ import annotations

from penstock.model.access import EVERYTHING, Access
from penstock.model.commands import Command
from penstock.model.schedules import Schedule


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
