"""Many simulated lives. A failure tells its seed: `python -m tests.simulation --seed S --steps N` lives it again."""

from __future__ import annotations

import pytest

from tests.simulation.world import simulate
from tests.support.effort import LONG

SEEDS_PER_TEST = 10
STEPS = 20_000 if LONG else 3_000


@pytest.mark.parametrize("first", range(0, 20_000 if LONG else 200, SEEDS_PER_TEST))
def test_every_promise_is_kept_whatever_the_disk_and_the_power_do(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        simulate(seed, STEPS)


def test_a_seed_lives_the_same_life_twice() -> None:
    one, two = simulate(7, 2_000), simulate(7, 2_000)
    assert one.trace == two.trace
    assert one.time.now == two.time.now


def test_the_lives_are_eventful() -> None:
    """A simulation in which nothing happens finds nothing."""
    worlds = [simulate(seed, STEPS) for seed in range(1000, 1020)]
    assert sum(world.crashes for world in worlds) > 5
    assert sum(world.failures for world in worlds) > 5
    assert sum(world.rotten for world in worlds) > 50
    assert sum(sum(life.damaged for life in world.ledger.alive.values()) for world in worlds) > 20
    assert sum(len(world.ledger.acknowledged) for world in worlds) > 3_000
    assert sum(len(world.ledger.finished) for world in worlds) > 1_000
    assert sum(world.ledger.forgotten for world in worlds) > 500
    assert sum(len(world.ledger.purge_asked) for world in worlds) > 10
