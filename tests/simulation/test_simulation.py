"""Many simulated lives. A failure names its seed: `python -m tests.simulation --seed S` lives it again.

TORTURE=long      10,000 lives more, in as many processes as there are cores
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.many import LIVES as WORLDS
from tests.simulation.many import STEPS, facts_of, lives, summary
from tests.simulation.world import simulate
from tests.support.effort import LONG

SEEDS_PER_TEST = 10
LIVES = 60
LIVES_LONG = 10_000


@pytest.mark.parametrize("first", range(0, LIVES, SEEDS_PER_TEST))
def test_every_promise_is_kept_whatever_the_disk_and_the_power_do(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        simulate(seed, STEPS["one"])


@pytest.mark.torture
@pytest.mark.skipif(not LONG, reason="it takes half an hour: TORTURE=long")
@pytest.mark.timeout(4 * 3600)
def test_every_promise_is_kept_in_ten_thousand_lives(capsys: pytest.CaptureFixture[str]) -> None:
    totals: Counter[str] = Counter()
    for story, facts in lives(WORLDS["one"], range(LIVES_LONG), STEPS["one"], os.cpu_count() or 1):
        assert not story, story
        totals.update(facts)
        if totals["lives"] % 1000 == 0:
            with capsys.disabled():
                print(f"\nsimulation: {summary(totals)}", end="", flush=True)
    assert totals["crashes"] >= LIVES_LONG


def test_a_seed_lives_the_same_life_twice() -> None:
    one, two = simulate(7, 2_000), simulate(7, 2_000)
    assert one.trace == two.trace
    assert one.time.now == two.time.now


def test_the_lives_are_eventful() -> None:
    """A simulation in which nothing happens finds nothing."""
    worlds = [simulate(seed, STEPS["one"]) for seed in range(1000, 1020)]
    totals = sum((Counter(facts_of(world)) for world in worlds), Counter())
    least = {"crashes": 5, "failures": 5, "acknowledged": 3_000, "finished": 1_000, "unchanged": 100, "notices": 300}
    assert {name: totals[name] for name in least if totals[name] <= least[name]} == {}
    assert sum(world.shard.rotten for world in worlds) > 50
    assert sum(sum(life.damaged for life in world.ledger.alive.values()) for world in worlds) > 20
    assert sum(world.ledger.forgotten for world in worlds) > 500
    assert sum(len(world.asked.purge) for world in worlds) > 10
    assert sum(world.searches for world in worlds) > 50
    assert sum(world.ledger.pushed for world in worlds) > 50
