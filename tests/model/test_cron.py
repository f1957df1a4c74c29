"""Cron expressions, compared with a look at every minute; in zones that skip times and have some twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ProtocolError
from penstock.limits import SECOND_NS
from penstock.model.cron import parse_cron
from penstock.model.values import Nanos
from tests.support.effort import effort

# Half an hour on Lord Howe, a whole day in Apia, at midnight in Havana and Beirut; a negative summer time in Dublin.
ZONES = (
    *("UTC", "Europe/Berlin", "Europe/Dublin", "America/New_York", "America/Havana", "Australia/Lord_Howe"),
    *("Asia/Kathmandu", "Asia/Beirut", "Pacific/Apia", "Africa/Casablanca", "America/St_Johns"),
)
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


# ── Compared with every minute ──────────────────────────────────────────────────────────────────────────────


def fields(low: int, high: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A field as text, and the numbers it stands for."""
    every = frozenset(range(low, high + 1))
    numbers = st.integers(low, high)
    ranges = st.tuples(numbers, numbers, st.integers(1, 12)).map(lambda three: (*sorted(three[:2]), three[2]))
    part = st.one_of(
        numbers.map(lambda number: (str(number), {number})),
        ranges.map(lambda three: (f"{three[0]}-{three[1]}/{three[2]}", {*range(three[0], three[1] + 1, three[2])})),
        st.integers(1, 30).map(lambda step: (f"*/{step}", {*range(low, high + 1, step)})),
    )
    lists = st.lists(part, min_size=1, max_size=3).map(
        lambda parts: (",".join(text for text, _ in parts), frozenset().union(*[chosen for _, chosen in parts]))
    )
    return st.just(("*", every)) | lists


expressions = st.tuples(fields(0, 59), fields(0, 23), fields(1, 31), fields(1, 12), fields(0, 6))
# Near a change of the clocks more often than not.
changes = st.sampled_from(["2026-03-08", "2026-03-29", "2026-10-25", "2026-11-01", "2011-12-30", "2026-04-05"])
moments = st.builds(
    lambda day, minutes: datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=minutes),
    changes,
    st.integers(-2 * 1440, 2 * 1440),
)


def looked_up(parts: tuple[tuple[str, frozenset[int]], ...], after: datetime, zone: tzinfo) -> datetime | None:
    """The next tick within three days, by looking at every minute of the wall clock and every minute of the world."""
    (_, minutes), (_, hours), (days, in_month), (_, months), (weekdays, in_week) = parts
    either = not days.startswith("*") and not weekdays.startswith("*")
    first_of: dict[datetime, datetime] = {}  # When a wall-clock time comes first.
    for minute in range(-2 * 1440, 5 * 1440):
        instant = after.replace(second=0) + timedelta(minutes=minute)
        first_of.setdefault(instant.astimezone(zone).replace(tzinfo=None), instant)
    walls = sorted(first_of)
    found = []
    wall = walls[0]
    while wall <= walls[-1]:
        matches = (wall.day in in_month, wall.isoweekday() % 7 in in_week)
        is_day = any(matches) if either else all(matches)
        if wall.minute in minutes and wall.hour in hours and wall.month in months and is_day:
            existing = wall
            while existing not in first_of:
                existing += timedelta(minutes=1)
            found.append(first_of[existing])
        wall += timedelta(minutes=1)
    later = [tick for tick in found if tick > after]
    return min(later) if later and min(later) < after + timedelta(days=3) else None


@given(parts=expressions, after=moments, seconds=st.integers(0, 59), zone=st.sampled_from(ZONES))
@effort(60)
def test_the_next_tick_is_the_one_that_a_look_at_every_minute_finds(
    parts: tuple[tuple[str, frozenset[int]], ...], after: datetime, seconds: int, zone: str
) -> None:
    after = after.replace(second=seconds)
    cron = parse_cron(" ".join(text for text, _ in parts))
    found = cron.next_after(nanos(after), ZoneInfo(zone))
    within = found is not None and found < nanos(after + timedelta(days=3))
    expected = looked_up(parts, after, ZoneInfo(zone))
    assert (found if within else None) == (nanos(expected) if expected else None)


@given(parts=expressions, after=moments, zone=st.sampled_from(ZONES))
@effort(100)
def test_ticks_are_in_order_and_none_is_left_out_whatever_it_is_asked_after(
    parts: tuple[tuple[str, frozenset[int]], ...], after: datetime, zone: str
) -> None:
    cron, region = parse_cron(" ".join(text for text, _ in parts)), ZoneInfo(zone)
    first = cron.next_after(nanos(after), region)
    if first is not None:
        assert cron.next_after(first - 1, region) == first
        assert cron.next_after((nanos(after) + first) // 2, region) == first
        assert (cron.next_after(first, region) or first + 1) > first


# ── By example ──────────────────────────────────────────────────────────────────────────────────────────────


def nanos(time: datetime) -> Nanos:
    return int(time.timestamp()) * SECOND_NS


def ticks(expression: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """The next ticks, in local time."""
    cron, region = parse_cron(expression), ZoneInfo(zone)
    tick: Nanos | None = nanos(datetime.fromisoformat(after).replace(tzinfo=region))
    found = []
    for _ in range(count):
        assert tick is not None
        tick = cron.next_after(tick, region)
        assert tick is not None
        found.append(datetime.fromtimestamp(tick // SECOND_NS, region).isoformat())
    return found


def test_a_time_that_the_zone_skips_comes_once_when_the_gap_ends() -> None:
    assert ticks("30 2 * * *", "2026-03-28", 3, "Europe/Berlin") == [
        *("2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"),
    ]
    assert ticks("*/20 * * * *", "2026-03-29T01:30", 3, "Europe/Berlin") == [
        *("2026-03-29T01:40:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-29T03:20:00+02:00"),
    ]


def test_a_time_that_the_zone_has_twice_comes_once() -> None:
    assert ticks("30 2 * * *", "2026-10-24T12:00", 2, "Europe/Berlin") == [
        *("2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"),
    ]
    assert ticks("*/30 * * * *", "2026-10-25T01:45", 3, "Europe/Berlin") == [
        *("2026-10-25T02:00:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-25T03:00:00+01:00"),
    ]


def test_a_day_that_the_zone_leaves_out_comes_with_the_next() -> None:
    assert ticks("0 9 30 12 *", "2011-12-01", 2, "Pacific/Apia") == [
        *("2011-12-31T00:00:00+14:00", "2012-12-30T09:00:00+14:00"),
    ]


def test_names_ranges_lists_and_steps() -> None:
    assert ticks("5,10-12 9 * * mon-fri", "2026-01-02T10:00", 3) == [
        *("2026-01-05T09:05:00+00:00", "2026-01-05T09:10:00+00:00", "2026-01-05T09:11:00+00:00"),
    ]
    assert ticks("0 0 * Feb,nov fri-SUN", "2026-02-27T12:00", 3) == [
        *("2026-02-28T00:00:00+00:00", "2026-11-01T00:00:00+00:00", "2026-11-06T00:00:00+00:00"),
    ]
    assert parse_cron("0 0 * * 7") == parse_cron("0 0 * * 0") == parse_cron("@weekly")
    assert parse_cron("@hourly") == parse_cron("0 * * * *")
    assert parse_cron("@Yearly") == parse_cron("0 0 1 1 *")


def test_of_two_restricted_days_one_is_enough() -> None:
    assert [tick[:10] for tick in ticks("0 0 13 * fri", "2026-01-10", 3)] == [
        "2026-01-13",
        "2026-01-16",
        "2026-01-23",
    ]
    assert [tick[:10] for tick in ticks("0 0 */2 * fri", "2026-01-10", 2)] == ["2026-01-23", "2026-02-13"]


def test_a_leap_day_is_found_and_a_day_that_never_comes_is_not() -> None:
    assert ticks("0 0 29 2 *", "2096-03-01", 1) == ["2104-02-29T00:00:00+00:00"]
    assert parse_cron("0 0 30 2 *").next_after(0, UTC) is None
    assert parse_cron("* * * * *").next_after(nanos(datetime(9995, 1, 1, tzinfo=UTC)), UTC) is not None


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("* * * *", "five fields"),
        ("@reboot", "five fields"),
        ("60 * * * *", "the minute of cron must be from 0 to 59, got '60'"),
        ("* 24 * * *", "the hour of cron must be from 0 to 23"),
        ("* * 0 * *", "the day of month of cron must be from 1 to 31"),
        ("* * * * 8", "the day of week"),
        ("* * * foo *", "the month of cron must be from 1 to 12, got 'foo'"),
        ("9-5 * * * *", "ends before it begins"),
        ("*/0 * * * *", "a step is a number from 1 on"),
        ("*/x * * * *", "a step is a number"),
        ("5/15 * * * *", "write 5-59/15"),
        ("1,,2 * * * *", "the minute"),
        ("٣ * * * *", "the minute"),
        ("-5 * * * *", "the minute"),
    ],
)
def test_what_is_not_a_cron_expression_is_refused_with_its_place(expression: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why.replace("*", ".")):
        parse_cron(expression)


@pytest.mark.parametrize(
    ("weekdays", "expected"), [("0-0", {0}), ("sun-sun", {0}), ("fri-sun", {5, 6, 0}), ("5-7", {5, 6, 0}), ("7", {0})]
)
def test_sunday_ends_a_range_of_weekdays_and_begins_one(weekdays: str, expected: set[int]) -> None:
    assert parse_cron(f"0 0 * * {weekdays}").weekdays == expected
