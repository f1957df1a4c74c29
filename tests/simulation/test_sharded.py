"""Simulated stores with several shards, over workers that have their own, and over nodes with a replicated store.

A failure names its seed: `python -m tests.simulation --world shards --seed S` lives it again.

TORTURE=long      2,000 lives more of each, in as many processes as there are cores
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.many import LIVES, STEPS, lives, summary
from tests.simulation.nodes import simulate_nodes
from tests.simulation.sharded import simulate_shards
from tests.support.effort import LONG

SEEDS = 30
SEEDS_LONG = 2_000
# A simulation in which nothing happens finds nothing.
LEAST = {"crashes": 5, "stops": 5, "links lost": 10, "failures": 1, "acknowledged": 300, "finished": 30, "copied": 50}
JOINT = {"joint commits": 100, "failures of a joint commit": 1}
WORLDS = {"shards": LEAST | JOINT | {"sent on": 3}, "nodes": LEAST | {"moves": 50, "failovers": 1}}


@pytest.mark.parametrize("world", WORLDS)
def test_every_promise_is_kept_over_workers_that_crash_and_links_that_are_lost(world: str) -> None:
    totals: Counter[str] = Counter()
    for story, facts in lives(LIVES[world], range(SEEDS), STEPS[world], 1):
        assert not story, story
        totals.update(facts)
    least = WORLDS[world]
    assert {name: totals[name] for name in least if totals[name] < least[name]} == {}


@pytest.mark.torture
@pytest.mark.skipif(not LONG, reason="it takes ten minutes: TORTURE=long")
@pytest.mark.timeout(2 * 3600)
@pytest.mark.parametrize("world", WORLDS)
def test_every_promise_is_kept_in_two_thousand_lives(world: str, capsys: pytest.CaptureFixture[str]) -> None:
    totals: Counter[str] = Counter()
    for story, facts in lives(LIVES[world], range(SEEDS_LONG), STEPS[world], os.cpu_count() or 1):
        assert not story, story
        totals.update(facts)
    with capsys.disabled():
        print(f"\n{world}: {summary(totals)}", end="", flush=True)
    assert totals["crashes"] >= SEEDS_LONG


def test_a_seed_lives_the_same_life_of_shards_twice() -> None:
    one, two = simulate_shards(7, 1_000), simulate_shards(7, 1_000)
    assert one.trace == two.trace
    assert one.time.now == two.time.now


def test_a_seed_lives_the_same_life_of_nodes_twice() -> None:
    one, two = simulate_nodes(7, 1_000), simulate_nodes(7, 1_000)
    assert one.trace == two.trace
    assert one.time.now == two.time.now
