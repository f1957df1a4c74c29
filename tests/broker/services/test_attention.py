"""A queue that needs a person is found, with the most urgent reason, and a healthy one is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.broker.services.attention import HOLD_SECONDS, Flags, Known, attention, slow_consumer
from penstock.broker.services.hour import Trend
from penstock.model.consumers import Consumer
from penstock.model.figures import SHOWN_MAX, Figures, shown

NOW = 1000.0
QUIET = Figures("q", False, False, 0, 0, 0, 0, 0, None, 0, 0.0, 0.0, None, None, None)
WAITING = replace(QUIET, ready=5, ready_since=NOW - 40)


UNKNOWN = Trend(None, None, None, None, None)


def rows(
    *queues: Figures,
    push: dict[str, str] | None = None,
    trend: Trend = UNKNOWN,
    lasting: set[str] | None = None,
    retries: int = 0,
    slow: str = "",
) -> list[Any]:
    known = Known(lambda _: trend, lambda _: bool(trend.left), lambda _: retries, lambda _: slow)
    return attention(list(queues), lasting or set(), push or {}, known, NOW)


def reasons(*queues: Figures, **others: Any) -> list[Any]:
    return [row["reason"] for row in rows(*queues, **others)]


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        (QUIET, []),
        (replace(QUIET, damaged=1), ["damaged"]),
        (WAITING, ["unconsumed"]),
        (replace(WAITING, ready_since=NOW - 5), []),
        (replace(WAITING, waiting=1), []),
        (replace(WAITING, leased=1), []),
        (replace(WAITING, left=3.0), []),
        (replace(WAITING, left=3.0, failed=0.5), ["failing"]),
        (replace(WAITING, left=3.0, ready_since=NOW - 700), ["old"]),
        (replace(QUIET, dead_letters=True, ready=3), ["dead_letters"]),
        (replace(QUIET, dead_letters=True), []),
        (replace(QUIET, delayed=100), []),
    ],
)
def test_each_trouble_has_its_reason(figures: Figures, expected: list[str]) -> None:
    assert reasons(figures) == expected


def test_a_queue_whose_messages_stay_needs_no_consumer() -> None:
    assert reasons(replace(WAITING, ready_since=0.1), lasting={"q"}) == []
    assert reasons(replace(WAITING, damaged=1), lasting={"q"}) == ["damaged"]


def test_a_queue_that_has_grown_for_minutes_is_found() -> None:
    growing = replace(WAITING, ready=500, left=1.0)
    assert reasons(growing, trend=UNKNOWN._replace(ready_before=200.0)) == ["growing"]
    assert reasons(growing, trend=UNKNOWN._replace(ready_before=450.0)) == []
    assert reasons(growing) == []


@pytest.mark.parametrize(
    ("ready", "growth", "entered", "grows"),
    [
        (30, 30, 1.0, True),
        (19, 19, 1.0, False),  # Too few to talk of.
        (200, 30, 1.0, False),  # Hardly more than before.
        (30, 30, 10.0, False),  # Three seconds of its traffic.
        (80, 80, 10.0, True),
        (80, -80, 10.0, False),
        (80, None, 10.0, False),
    ],
)
def test_a_short_rush_is_found(ready: int, growth: int | None, entered: float, grows: bool) -> None:
    figures = replace(WAITING, ready=ready, growth=growth, left=1.0, ready_since=NOW - 1)
    trend = Trend(None, entered, 0.5, None, None)
    assert reasons(figures, trend=trend) == (["growing"] if grows else [])


BUSY = replace(WAITING, ready=900, growth=800, leased=1, ready_since=NOW - 1)


@pytest.mark.parametrize(
    ("figures", "trend", "words"),
    [
        (BUSY, Trend(10, 3.0, 1.0, 2.9, 1.0), "more are published (3.0/s) than done (1.0/s)"),
        (BUSY, Trend(10, 30.0, 12.0, 10.0, 10.0), "30/s are published, 10/s were before; 12/s are done"),
        (BUSY, Trend(10, 10.0, 4.0, 10.0, 9.8), "consumers are slower: 4.0/s are done, 9.8/s were before"),
        (
            replace(BUSY, delivered=8.0, retried=4.0),
            Trend(10, 10.0, 4.0, 10.0, 9.8),
            "many are given back: 4.0/s of 8.0/s that are delivered",
        ),
    ],
)
def test_a_queue_that_grows_says_why(figures: Figures, trend: Trend, words: str) -> None:
    [row] = rows(figures, trend=trend)
    assert (row["reason"], row["growth"]) == ("growing", 800)
    assert row["text"] == f"grew by 800 in the last minute: {words}"


def test_a_queue_that_nobody_consumes_has_no_consumer_however_fast_it_grows() -> None:
    [row] = rows(replace(BUSY, leased=0), trend=Trend(10, 10.0, 0.0, 10.0, 9.8))
    assert (row["reason"], row["text"]) == ("unconsumed", "nobody consumes; grew by 800 in the last minute")


def test_a_consumer_between_two_requests_is_a_consumer() -> None:
    waiting = replace(WAITING, ready=25, ready_since=NOW - 300)
    assert reasons(waiting, trend=UNKNOWN._replace(left=0.2)) == []


def test_a_queue_whose_messages_wait_for_minutes_and_become_more_grows_however_slowly() -> None:
    creeping = replace(WAITING, ready=400, growth=3, left=1.0, ready_since=NOW - 200)
    assert reasons(creeping, trend=UNKNOWN._replace(ready_before=390.0)) == ["growing"]
    assert reasons(creeping, trend=UNKNOWN._replace(ready_before=410.0)) == []
    assert reasons(replace(creeping, ready_since=NOW - 20), trend=UNKNOWN._replace(ready_before=390.0)) == []


def test_the_slow_consumer_is_the_reason_if_it_is_known() -> None:
    [row] = rows(BUSY, slow="b takes 2.6 s, 10 times as long as a")
    assert row["text"] == "grew by 800 in the last minute: b takes 2.6 s, 10 times as long as a"


def test_a_slow_consumer_is_named_with_another_to_compare() -> None:
    quick = Consumer("a", "q", seconds_p50=0.26, times=9)
    slow = Consumer("b", "q", seconds_p50=2.6, times=3)
    assert slow_consumer([slow, quick]) == "b takes 2.6 s, 10 times as long as a"
    assert slow_consumer([slow, Consumer("c", "q", seconds_p50=2.0, times=9)]) == ""
    assert slow_consumer([Consumer("b", "q", seconds_p50=2.6, times=2), quick]) == "", "too few to tell"
    assert slow_consumer([slow]) == ""


def test_retries_that_pile_up_are_found() -> None:
    delayed = replace(QUIET, delayed=90)
    assert reasons(delayed, retries=40) == ["retries"]
    assert reasons(delayed, retries=10) == []
    assert reasons(replace(QUIET, delayed=1000), retries=40) == [], "hardly more than before"


def test_what_gets_worse_comes_before_what_only_waits() -> None:
    busy = Trend(10, 10.0, 4.0, 10.0, 9.8)
    lost = replace(QUIET, name="lost", dead_letters=True, ready=900, growth=0)
    more = replace(lost, name="more", growth=5)
    retried = replace(QUIET, name="retried", delayed=90)
    alone = replace(WAITING, name="alone", ready_since=NOW - 700)
    old = replace(WAITING, name="old", ready=9, leased=1, ready_since=NOW - 700)
    found = rows(lost, more, old, retried, replace(BUSY, name="busy"), trend=busy, retries=40)
    assert [row["queue"] for row in found] == ["busy", "more", "retried", "old", "lost"]
    assert [row["queue"] for row in rows(lost, alone)] == ["alone", "lost"]


def test_a_flag_is_held_while_its_trouble_may_come_back_and_drops_when_it_is_over() -> None:
    flags, trend = Flags(), Trend(10, 10.0, 4.0, 10.0, 9.8)
    found = flags.hold(rows(BUSY, trend=trend), {"q": BUSY}, NOW)
    assert [row["reason"] for row in found] == ["growing"]
    fewer = replace(BUSY, ready=700, growth=-5)
    [held] = flags.hold([], {"q": fewer}, NOW + HOLD_SECONDS)
    assert (held["reason"], held["growth"]) == ("growing", -5)
    assert flags.hold([], {"q": fewer}, NOW + HOLD_SECONDS + 1) == []
    flags.hold(found, {"q": BUSY}, NOW)
    assert flags.hold([], {"q": replace(BUSY, ready=0)}, NOW + 1) == []
    flags.hold(found, {"q": BUSY}, NOW)
    assert flags.hold([], {}, NOW + 1) == [], "the queue is gone"
    [lonely] = flags.hold(rows(WAITING), {"q": WAITING}, NOW)
    assert lonely["reason"] == "unconsumed"
    assert flags.hold([], {"q": replace(WAITING, waiting=1)}, NOW + 1) == [], "somebody consumes"


def test_a_queue_with_a_worse_trouble_says_that_it_grows_too() -> None:
    [row] = rows(replace(BUSY, leased=0, ready_since=NOW - 40), trend=Trend(10, 1.0, 0.0, 1.0, 0.0))
    assert (row["reason"], row["text"]) == ("unconsumed", "nobody consumes; grew by 800 in the last minute")


def test_dead_letters_and_messages_that_stay_do_not_grow() -> None:
    assert reasons(replace(BUSY, dead_letters=True), trend=Trend(10, 1.0, 0.0, 1.0, 0.0)) == ["dead_letters"]
    assert reasons(BUSY, trend=Trend(10, 1.0, 0.0, 1.0, 0.0), lasting={"q"}) == []


def test_an_endpoint_that_fails_is_named() -> None:
    [row] = rows(replace(WAITING, channel=True), push={"q": "connection refused"})
    assert row["reason"] == "push"
    assert "connection refused" in row["text"]


def test_the_most_urgent_comes_first_and_the_list_is_bounded_but_for_queues_that_are_asked_for() -> None:
    old = [replace(WAITING, name=f"old-{number}", left=1.0, ready_since=0.1) for number in range(SHOWN_MAX)]
    found = rows(*old, replace(QUIET, name="z", damaged=1))
    assert [row["reason"] for row in shown(found, None)] == ["damaged"] + ["old"] * (SHOWN_MAX - 1)
    assert shown(found, {"z", found[-1]["queue"]}) == found
