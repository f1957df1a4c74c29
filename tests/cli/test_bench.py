"""`penstock bench`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.cli.bench import figures, shares
from tests.cli.conftest import Verb


def test_it_measures_both_ways_and_leaves_no_queue(verb: Verb, ask: Callable[..., Any]) -> None:
    (measured,) = ask("bench", "-n", "500", "--size", "10", "--publishers", "7")
    assert measured["publish"]["rate"] > 0
    assert measured["consume"]["p99_ms"] >= measured["consume"]["p50_ms"] > 0
    assert not [queue for queue in ask("queues", "list") if queue["name"].startswith("penstock-bench-")]


def test_work_is_shared_evenly() -> None:
    assert shares(10, 3) == [4, 3, 3]


def test_figures_are_rates_and_percentiles() -> None:
    assert figures(200, 2.0, [number / 1000 for number in range(100)]) == {
        "rate": 100,
        "seconds": 2.0,
        "p50_ms": 50.0,
        "p99_ms": 99.0,
    }
