"""A queue that needs a person is found, with the most urgent reason, and a healthy one is left alone."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from penstock.dialects.native.stats import Figures
from penstock.server.services.attention import SHOWN_MAX, attention

NOW = 1000.0
QUIET = Figures("q", False, False, 0, 0, 0, 0, 0, None, 0, 0.0, 0.0, None, None, None)
WAITING = replace(QUIET, ready=5, ready_since=NOW - 40)


def reasons(
    *queues: Figures,
    push: dict[str, str] | None = None,
    before: float | None = None,
    lasting: set[str] | None = None,
) -> list[Any]:
    return [row["reason"] for row in attention(list(queues), lasting or set(), push or {}, lambda _: before, NOW)]


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


def test_a_queue_that_grows_is_found() -> None:
    growing = replace(WAITING, ready=500, left=1.0)
    assert reasons(growing, before=200.0) == ["growing"]
    assert reasons(growing, before=450.0) == []
    assert reasons(growing, before=None) == []


def test_an_endpoint_that_fails_is_named() -> None:
    [row] = attention([replace(WAITING, channel=True)], set(), {"q": "connection refused"}, lambda _: None, NOW)
    assert row["reason"] == "push"
    assert "connection refused" in row["text"]


def test_the_most_urgent_comes_first_and_the_list_is_bounded() -> None:
    old = [replace(WAITING, name=f"old-{number}", left=1.0, ready_since=0.1) for number in range(SHOWN_MAX)]
    assert reasons(*old, replace(QUIET, name="z", damaged=1)) == ["damaged"] + ["old"] * (SHOWN_MAX - 1)
