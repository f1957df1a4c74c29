"""What the guide says that a rate of messages needs follows from the recorded costs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.sizing import Costs, need, table

GUIDE = Path(__file__).parent.parent / "docs" / "deploy" / "sizing.md"


@pytest.mark.parametrize(("way", "messages"), [("one", 1), ("many", 100)])
def test_the_tables_of_the_guide_are_those_that_the_recorded_costs_give(way: str, messages: int) -> None:
    found = re.search(rf"<!-- sizing: {way} -->\n(.*?)\n<!-- /sizing -->", GUIDE.read_text(), re.DOTALL)
    assert found
    assert found[1].splitlines() == list(table(way, messages))


def test_a_worker_more_is_needed_where_one_would_have_no_time_left() -> None:
    costs = Costs(message=60.0, forwarded=1.5, store=0.0, postgresql=0.0)
    assert need(10_000, 1000, costs, store=False).workers == 1, "60 % of a core"
    assert need(10_001, 1000, costs, store=False).workers == 2
    assert need(16_000, 1000, costs, store=False).workers == 2, "1.25 times the cost, with half of them forwarded"
    assert need(16_001, 1000, costs, store=False).workers == 3


def test_a_store_costs_cores_of_its_own() -> None:
    costs = Costs(message=30.0, forwarded=1.0, store=30.0, postgresql=12.0)
    plain, stored = (need(100_000, 1000, costs, store=store) for store in (False, True))
    assert (plain.workers, plain.postgresql_cores) == (5, 0)
    assert (stored.workers, stored.postgresql_cores) == (10, 2)
    assert stored.log_megabytes_per_second == 100.0
