"""Simulated stores with several shards. A failure names its seed: `python -m tests.simulation --shards --seed S`.

TORTURE=long      2,000 lives more, in as many processes as there are cores
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.many import STEPS, facts_of_shards, live_sharded, lives, summary
from tests.simulation.sharded import simulate_shards
from tests.support.effort import LONG

LIVES = 12
LIVES_LONG = 2_000


def test_every_promise_is_kept_over_workers_that_crash_and_links_that_are_lost() -> None:
    worlds = [simulate_shards(seed, STEPS) for seed in range(LIVES)]
    totals = sum((Counter(facts_of_shards(world)) for world in worlds), Counter())
    least = {"crashes": 5, "stops": 5, "links lost": 10, "failures": 2, "acknowledged": 1_000, "finished": 100}
    assert {name: totals[name] for name in least if totals[name] < least[name]} == {}, "too little happens"


@pytest.mark.torture
@pytest.mark.skipif(not LONG, reason="it takes a quarter of an hour: TORTURE=long")
@pytest.mark.timeout(2 * 3600)
def test_every_promise_is_kept_in_two_thousand_lives_of_shards(capsys: pytest.CaptureFixture[str]) -> None:
    totals: Counter[str] = Counter()
    for story, facts in lives(live_sharded, range(LIVES_LONG), STEPS, os.cpu_count() or 1):
        assert not story, story
        totals.update(facts)
    with capsys.disabled():
        print(f"\nshards: {summary(totals)}", end="", flush=True)
    assert totals["crashes"] >= LIVES_LONG


def test_a_seed_lives_the_same_life_of_shards_twice() -> None:
    one, two = simulate_shards(7, 1_000), simulate_shards(7, 1_000)
    assert one.trace == two.trace
    assert one.time.now == two.time.now
