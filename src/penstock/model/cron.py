"""Cron expressions: five fields, and the instants they stand for in a time zone.

Each wall-clock time that matches is one tick. A time that the zone skips is a tick at the first instant after the
gap, and times that come to the same instant are one tick. A time that the zone has twice is a tick when it comes
first. So ticks are in the order of their wall-clock times, which is how the next one is found.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta, tzinfo
from typing import NamedTuple

from penstock.errors import ProtocolError
from penstock.limits import SECOND_NS
from penstock.model.values import Nanos
from penstock.remembering import remembered

_MONTHS_MAX = 12 * 9  # From one 29 February to the next it may be eight years.
_YEAR_MAX = 9_990
_MINUTE = timedelta(minutes=1)

_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: Sequence[str] = ()  # Of the lowest number, and so on.


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 7, _DAYS),
)
_SUNDAY = 7  # Which is also 0.


class Cron(NamedTuple):
    """The numbers that each field allows, in order. Days of the week begin with 0, Sunday."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either: bool  # Both kinds of days are restricted: one of them has to match.

    def next_after(self, after: Nanos, zone: tzinfo) -> Nanos | None:
        """The first tick after a time; None if there is none."""
        local = datetime.fromtimestamp(after // SECOND_NS, zone)
        wall: datetime | None = local.replace(tzinfo=None, second=0, fold=0)
        while wall is not None and (wall := self._next_wall(wall)) is not None:
            tick = _instant(wall, zone) * SECOND_NS
            if tick > after:  # Else the clock was set back, and it has come before.
                return tick
        return None

    def _next_wall(self, wall: datetime) -> datetime | None:
        """The first wall-clock time after this one that matches."""
        wall += _MINUTE
        if self._has_day(wall.date()) and (found := self._next_time(wall.hour, wall.minute)):
            return datetime.combine(wall, found)
        day = next(self._days_after(wall.date()), None)
        return datetime.combine(day, time(self.hours[0], self.minutes[0])) if day else None

    def _next_time(self, hour: int, minute: int) -> time | None:
        """The first time of a day, from this one on."""
        for each in self.hours:
            if each > hour:
                return time(each, self.minutes[0])
            if each == hour and minute <= self.minutes[-1]:
                return time(each, next(number for number in self.minutes if number >= minute))
        return None

    def _days_after(self, day: date) -> Iterator[date]:
        year, month, first = day.year, day.month, day.day + 1
        for _ in range(_MONTHS_MAX):
            if month in self.months and year <= _YEAR_MAX:
                for number in range(first, monthrange(year, month)[1] + 1):
                    if self._has_day(date(year, month, number)):
                        yield date(year, month, number)
            year, month, first = (year + 1, 1, 1) if month == 12 else (year, month + 1, 1)

    def _has_day(self, day: date) -> bool:
        if day.month not in self.months:
            return False
        matches = (day.day in self.days, day.isoweekday() % 7 in self.weekdays)
        return any(matches) if self.either else all(matches)


def _instant(wall: datetime, zone: tzinfo) -> int:
    """When a wall-clock time comes, in seconds since the epoch. If it comes twice: the first time. If it never comes:
    when the gap ends."""
    early = wall.replace(tzinfo=zone)
    seconds = int(early.timestamp())
    if datetime.fromtimestamp(seconds, zone).replace(tzinfo=None) == wall:
        return seconds
    after = early.replace(fold=1)
    low, high = int(after.timestamp()), seconds  # Before and after the zone changes its offset.
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == after.utcoffset():
            high = middle
        else:
            low = middle
    return high


@remembered(4096)
def parse_cron(text: str) -> Cron:
    """Raises `ProtocolError` for what is not a cron expression."""
    expression = _NICKNAMES.get(text.strip().lower(), text)
    parts = expression.split()
    if len(parts) != len(_FIELDS):
        known = ", ".join(_NICKNAMES)
        raise ProtocolError(
            f"cron has five fields (minute hour day month weekday) or is one of {known}; got {text!r}"
        )
    minutes, hours, days, months, weekdays = map(_numbers_of, _FIELDS, parts)
    either = not parts[2].startswith("*") and not parts[4].startswith("*")
    numbers = frozenset(number % _SUNDAY for number in weekdays)
    return Cron(tuple(sorted(minutes)), tuple(sorted(hours)), frozenset(days), frozenset(months), numbers, either)


def _numbers_of(field: _Field, text: str) -> set[int]:
    return {number for part in text.split(",") for number in _range_of(field, part)}


def _range_of(field: _Field, part: str) -> range:
    span, slash, step = part.partition("/")
    first, dash, last = span.partition("-")
    if span == "*":
        low, high = field.low, field.high
    else:
        low = _number_of(field, first)
        high = _number_of(field, last) if dash else low
        if dash and low and not high and field.high == _SUNDAY:
            high = _SUNDAY  # As in fri-sun.
    if low > high:
        raise ProtocolError(f"the {field.name} of cron has the range {span!r}, which ends before it begins")
    if slash and not (step.isascii() and step.isdigit() and int(step[:4])):
        raise ProtocolError(f"the {field.name} of cron has the step {step!r}; a step is a number from 1 on")
    if slash and span == first and span != "*":
        raise ProtocolError(f"the {field.name} of cron has a step without a range: write {first}-{field.high}/{step}")
    return range(low, high + 1, int(step[:4]) if slash else 1)


def _number_of(field: _Field, text: str) -> int:
    if text.lower() in field.names:
        return field.low + field.names.index(text.lower())
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 2 else -1
    if not field.low <= number <= field.high:
        raise ProtocolError(f"the {field.name} of cron must be from {field.low} to {field.high}, got {text!r}")
    return number
