"""Recurring schedules: each tick has one message, or is counted as missed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.limits import (
    NEVER_NS,
    SCHEDULE_TICKS_CAUGHT_UP_MAX,
    SCHEDULES_BYTES_MAX,
    SECOND_NS,
)
from penstock.model.answers import Answer, Refused, ScheduleDescription, ScheduleList
from penstock.model.commands import DeleteQueue
from penstock.model.events import Logged
from penstock.model.schedules import (
    DeleteSchedule,
    DescribeSchedule,
    ListSchedules,
    RunSchedule,
    Schedule,
    ScheduleRan,
    ScheduleSet,
    ScheduleSkipped,
    SetSchedule,
)
from tests.support.engine_rig import START_NS, Rig, state_of


@pytest.fixture
def rig() -> Rig:
    """With a queue, and with time zones."""
    rig = Rig()
    rig.engine.zones = lambda name: ZoneInfo(name) if name != "Mars" else None
    rig.create("work")
    return rig


def put(rig: Rig, name: str = "beat", **fields: Any) -> ScheduleDescription:
    answer = rig.do(SetSchedule(name, schedule(**fields)))
    assert isinstance(answer, ScheduleDescription), answer
    return answer


def schedule(**fields: Any) -> Schedule:
    timing = {} if "cron" in fields else {"every_ns": 10 * SECOND_NS}
    return Schedule(**{"queue": "work", "body": b"tick", **timing, **fields})


def refused(answer: Answer) -> Reason:
    assert isinstance(answer, Refused), answer
    return answer.reason


def shown(rig: Rig, name: str = "beat") -> ScheduleDescription:
    answer = rig.do(DescribeSchedule(name))
    assert isinstance(answer, ScheduleDescription), answer
    return answer


def planned(rig: Rig) -> list[float]:
    """The ticks that messages were published for, in seconds since the start."""
    return [(event.planned - START_NS) / SECOND_NS for event in rig.events if isinstance(event, ScheduleRan)]


def pass_slowly(rig: Rig, seconds: int) -> None:
    for _ in range(seconds):
        rig.wait(1)


# ── Ticks ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_interval_runs_once_at_each_tick(rig: Rig) -> None:
    put(rig)
    pass_slowly(rig, 35)
    assert planned(rig) == [10, 20, 30]
    assert rig.bodies("work") == [b"tick"] * 3
    found = shown(rig)
    assert (found.runs, found.missed, found.next) == (3, 0, START_NS + 40 * SECOND_NS)


def test_a_start_says_when_intervals_begin(rig: Rig) -> None:
    put(rig, "later", start=START_NS + 25 * SECOND_NS)
    put(rig, "before", start=START_NS - 1_000_003 * SECOND_NS)
    put(rig, "whole", start=0, every_ns=60 * SECOND_NS)
    assert shown(rig, "later").next == START_NS + 25 * SECOND_NS
    assert shown(rig, "before").next == START_NS + 7 * SECOND_NS
    pass_slowly(rig, 40)
    assert planned(rig) == [7, 17, 20, 25, 27, 35, 37]


def test_a_cron_expression_runs_in_its_zone(rig: Rig) -> None:
    rig.clock = int(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp()) * SECOND_NS
    put(rig, cron="30 2 * * *", time_zone="Europe/Berlin")
    times = []
    for _ in range(3):
        times.append(datetime.fromtimestamp(shown(rig).next // SECOND_NS, UTC).isoformat())
        rig.wait(86_400)
    assert times == ["2026-03-29T01:00:00+00:00", "2026-03-30T00:30:00+00:00", "2026-03-31T00:30:00+00:00"]
    assert rig.describe("work").messages == 3


def test_a_message_names_its_schedule_and_its_tick(rig: Rig) -> None:
    kept = msgspec.msgpack.encode({b"x-trace-id": b"7"})
    put(rig, content_type="text/plain", priority=3, key=b"k", object="thing", headers=kept, expires_ns=SECOND_NS)
    rig.wait(10.5)
    [logged] = [event for event in rig.events if isinstance(event, Logged)]
    [delivery] = rig.fetch("work")
    assert (delivery.sender, delivery.content_type, delivery.priority) == ("schedule:beat", "text/plain", 3)
    assert (delivery.key, delivery.object) == (b"k", "thing")
    headers = msgspec.msgpack.decode(delivery.headers, type=dict[bytes, bytes])
    assert headers == {b"x-trace-id": b"7", b"timestamp": b"1970-01-01T00:16:50Z"}
    assert logged.expires_at == logged.time + SECOND_NS


def test_topics_reach_their_queue_and_their_channels(rig: Rig) -> None:
    rig.create("rainy", topics=("weather.rain*",))
    put(rig, queue="", topics=("weather.rain",), object="weather")
    rig.wait(10)
    assert rig.bodies("weather") == rig.bodies("rainy") == [b"tick"]


def test_two_that_are_due_together_both_run(rig: Rig) -> None:
    rig.create("once", deduplication=True)
    for name in ("one", "two", "three"):
        put(rig, name, queue="once")
    rig.wait(10)
    assert planned(rig) == [10, 10, 10]
    assert rig.bodies("once") == [b"tick"]  # The queue holds a body once.


# ── Set again ───────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_put_again_goes_on_as_planned(rig: Rig) -> None:
    assert put(rig).is_new
    rig.wait(7)
    assert not put(rig).is_new
    put(rig, body=b"other")
    rig.wait(3)
    assert planned(rig) == [10]
    assert rig.bodies("work") == [b"other"]
    assert len([event for event in rig.events if isinstance(event, ScheduleSet)]) == 2


def test_another_interval_begins_anew_and_what_was_done_stays_known(rig: Rig) -> None:
    put(rig)
    rig.wait(13)
    assert put(rig, every_ns=60 * SECOND_NS).next == START_NS + 73 * SECOND_NS
    assert shown(rig).runs == 1


def test_one_that_is_deleted_does_not_run(rig: Rig) -> None:
    put(rig)
    rig.do(DeleteSchedule("beat"))
    rig.wait(100)
    assert planned(rig) == []
    assert rig.engine.schedules.next_due == rig.engine.next_deadline == NEVER_NS
    assert refused(rig.do(DescribeSchedule("beat"))) is Reason.NO_SCHEDULE
    assert refused(rig.do(DeleteSchedule("beat"))) is Reason.NO_SCHEDULE
    assert refused(rig.do(RunSchedule("beat"))) is Reason.NO_SCHEDULE


def test_one_run_out_of_turn_changes_no_plan(rig: Rig) -> None:
    put(rig, paused=True)
    rig.wait(3)
    rig.do(RunSchedule("beat"))
    assert rig.bodies("work") == [b"tick"]
    assert (shown(rig).runs, shown(rig).next) == (1, START_NS + 10 * SECOND_NS)


def test_they_are_listed_in_the_order_of_their_making(rig: Rig) -> None:
    for name in ("c", "a", "b"):
        put(rig, name)
    put(rig, "c", body=b"new")
    answer = rig.do(ListSchedules(1, 5))
    assert isinstance(answer, ScheduleList)
    assert (answer.total, [each.name for each in answer.schedules]) == (3, ["a", "b"])


# ── Missed ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("catch_up", "runs", "missed"), [("one", [50], 4), ("all", [10, 20, 30, 40, 50], 0), ("none", [50], 4)]
)
def test_what_was_missed_is_caught_up_with_as_asked(rig: Rig, catch_up: str, runs: list[int], missed: int) -> None:
    put(rig, catch_up=catch_up)
    rig.wait(55)
    headers = [delivery.headers for delivery in rig.fetch("work", 9)]
    times = [msgspec.msgpack.decode(each, type=dict[bytes, bytes])[b"timestamp"] for each in headers]
    assert times == [f"1970-01-01T00:{16 + (40 + run) // 60}:{(40 + run) % 60:02}Z".encode() for run in runs]
    assert (shown(rig).runs, shown(rig).missed) == (len(runs), missed)
    assert shown(rig).next == START_NS + 60 * SECOND_NS


def test_a_tick_that_is_long_past_is_not_made_up_for_if_nothing_is_to_be(rig: Rig) -> None:
    put(rig, every_ns=60 * SECOND_NS, catch_up="none")
    rig.wait(150)
    assert (planned(rig), shown(rig).missed) == ([], 2)
    rig.wait(31)
    assert planned(rig) == [180]


def test_ticks_of_a_pause_are_missed(rig: Rig) -> None:
    put(rig)
    put(rig, "other", catch_up="none", every_ns=60 * SECOND_NS)
    for name, fields in (("beat", {}), ("other", {"catch_up": "none", "every_ns": 60 * SECOND_NS})):
        put(rig, name, paused=True, **fields)
    rig.wait(100)
    assert planned(rig) == []
    put(rig)
    put(rig, "other", catch_up="none", every_ns=60 * SECOND_NS)
    rig.wait(1)
    assert planned(rig) == [100]
    assert (shown(rig).runs, shown(rig).missed, shown(rig, "other").missed) == (1, 9, 1)


@pytest.mark.parametrize("catch_up", ["one", "all", "none"])
@pytest.mark.parametrize("timing", [{"every_ns": 60 * SECOND_NS}, {"cron": "* * * * *"}])
def test_a_long_absence_is_counted_to_the_tick(rig: Rig, catch_up: str, timing: dict[str, Any]) -> None:
    put(rig, catch_up=catch_up, **timing)
    rig.wait(5_000 * 60)
    found = shown(rig)
    assert found.runs == {"one": 1, "all": SCHEDULE_TICKS_CAUGHT_UP_MAX, "none": found.runs}[catch_up]
    assert found.runs + found.missed == 5_000
    assert rig.clock < found.next <= rig.clock + 60 * SECOND_NS


def test_a_clock_that_was_set_back_repeats_no_tick(rig: Rig) -> None:
    put(rig)
    pass_slowly(rig, 25)
    rig.clock -= 20 * SECOND_NS
    for _ in range(30):
        rig.clock += SECOND_NS
        while rig.next_due <= rig.now():
            rig.settle()
    assert planned(rig) == [10, 20, 30]


@pytest.mark.parametrize("hours", [-1, 1])
def test_ticks_follow_the_clock_of_the_machine_and_not_that_of_leases(rig: Rig, hours: int) -> None:
    rig.ahead = hours * 3600 * SECOND_NS
    assert put(rig).next == START_NS - rig.ahead + 10 * SECOND_NS
    assert put(rig, "daily", cron="0 0 * * *").next % (24 * 3600 * SECOND_NS) == 0
    pass_slowly(rig, 25)
    assert [round(tick + hours * 3600) for tick in planned(rig)] == [10, 20]
    rig.do(RunSchedule("beat"))
    assert round(planned(rig)[-1] + hours * 3600) == 25
    rig.ahead -= 30 * SECOND_NS
    pass_slowly(rig, 1)
    assert round(planned(rig)[-1] + hours * 3600) == 50, "the last of the ticks that were skipped"


# ── What cannot be published ────────────────────────────────────────────────────────────────────────────────


def test_without_its_queue_a_tick_is_missed_and_says_why(rig: Rig) -> None:
    put(rig)
    rig.do(DeleteQueue("work"))
    rig.wait(10)
    found = shown(rig)
    assert (found.runs, found.missed, found.error) == (0, 1, "the queue does not exist: work")
    rig.create("work")
    rig.wait(10)
    assert (shown(rig).runs, shown(rig).error) == (1, "")


def test_what_is_refused_for_a_while_is_tried_again_until_it_is_not(rig: Rig) -> None:
    put(rig)
    rig.engine.names.most = len(rig.engine.names)
    pass_slowly(rig, 13)
    assert planned(rig) == []
    assert shown(rig).error.startswith("name limit reached")
    assert len([event for event in rig.events if isinstance(event, ScheduleSkipped)]) <= 4
    rig.engine.names.most += 1
    pass_slowly(rig, 2)
    assert (planned(rig), shown(rig).missed, shown(rig).error) == ([10], 0, "")


def test_a_zone_that_is_gone_stops_its_schedule_and_says_why(rig: Rig) -> None:
    put(rig, cron="* * * * *", time_zone="Europe/Berlin")
    rig.engine.zones = lambda _: None
    rig.wait(300)
    found = shown(rig)
    assert (found.runs, found.missed, found.next) == (0, 1, NEVER_NS)
    assert found.error.startswith("the time zone does not exist: Europe/Berlin")


def test_an_expression_of_another_version_stops_its_schedule_and_says_why(rig: Rig) -> None:
    rig._apply([ScheduleSet(rig.now(), "odd", schedule(cron="L * * * *"), START_NS + SECOND_NS)])
    rig.wait(300)
    assert (shown(rig, "odd").next, shown(rig, "odd").missed) == (NEVER_NS, 1)
    assert shown(rig, "odd").error.startswith("the minute of cron")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"queue": "nowhere"}, Reason.NO_QUEUE),
        ({"queue": "rainy"}, Reason.IS_CHANNEL),
        ({"queue": "", "topics": ("work.x", "rainy.x")}, Reason.IS_CHANNEL),
        ({"cron": "* * * * *", "time_zone": "Mars"}, Reason.NO_TIME_ZONE),
        ({"cron": "0 0 31 4 *"}, Reason.NEVER_RUNS),
        ({"start": NEVER_NS}, Reason.NEVER_RUNS),
        ({"body": b"x" * (SCHEDULES_BYTES_MAX + 1)}, Reason.TOO_MANY_SCHEDULES),
    ],
)
def test_what_could_never_run_is_refused(rig: Rig, fields: dict[str, Any], reason: Reason) -> None:
    rig.create("rainy", topics=("rain",))
    assert refused(rig.do(SetSchedule("beat", schedule(**fields)))) is reason
    assert len(rig.engine.schedules) == 0


# ── After a crash ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_a_restart_knows_all_of_it_without_a_calendar(rig: Rig, from_snapshot: bool) -> None:
    put(rig, "kept", cron="*/5 * * * *", time_zone="Europe/Berlin", catch_up="all")
    put(rig, "topical", queue="", topics=("a.b", "c"), key=b"\xff", create=rig.describe("work").settings)
    put(rig, "paused", paused=True)
    put(rig, "gone")
    put(rig, "broken")
    rig.do(DeleteSchedule("gone"))
    rig.wait(1_000)
    engine: Engine = rig.restored() if from_snapshot else rig.replayed()
    assert state_of(engine) == state_of(rig.engine)
    assert engine.schedules.next_due == rig.engine.schedules.next_due
    assert engine.schedules.bytes == rig.engine.schedules.bytes


def test_a_schedule_that_is_paused_and_resumed_many_times_leaves_nothing_behind(rig: Rig) -> None:
    for _ in range(1_000):
        put(rig, paused=True)
        put(rig)
    assert len(rig.engine.schedules._heap) < 100
    rig.wait(10)
    assert planned(rig) == [10]
