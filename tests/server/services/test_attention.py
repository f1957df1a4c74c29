"""A queue that needs a person is found, with the most urgent reason, and a healthy one is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.dialects.native.stats import Figures
from penstock.server.services.attention import SHOWN_MAX, attention, shown
from penstock.server.services.hour import Trend

NOW = 1000.0
QUIET = Figures("q", False, False, 0, 0, 0, 0, 0, None, 0, 0.0, 0.0, None, None, None)
WAITING = replace(QUIET, ready=5, ready_since=NOW - 40)


UNKNOWN = Trend(None, None, None, None, None)


def rows(
    *queues: Figures,
    push: dict[str, str] | None = None,
    trend: Trend = UNKNOWN,
    lasting: set[str] | None = None,
) -> list[Any]:
    return attention(list(queues), lasting or set(), push or {}, lambda _: trend, NOW)


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
        (replace(BUSY, leased=0), Trend(10, 10.0, 0.0, 10.0, 9.8), "nobody consumes"),
    ],
)
def test_a_queue_that_grows_says_why(figures: Figures, trend: Trend, words: str) -> None:
    [row] = rows(figures, trend=trend)
    assert (row["reason"], row["growth"]) == ("growing", 800)
    assert row["text"] == f"grew by 800 in the last minute: {words}"


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
