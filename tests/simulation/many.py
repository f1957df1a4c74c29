"""Many simulated lives, in several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context

from tests.simulation.requests import SimulationError
from tests.simulation.sharded import ShardedWorld, simulate_shards
from tests.simulation.world import World, simulate

STEPS = 3000

Life = Callable[
    [int, int], tuple[str, dict[str, int]]
]  # By seed and steps: its story if a promise was broken, and facts.


def lives(life: Life, seeds: range, steps: int, processes: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Each life as it ends."""
    if processes == 1:
        yield from map(life, seeds, repeat(steps))
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            yield from pool.map(life, seeds, repeat(steps), chunksize=10)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def live(seed: int, steps: int) -> tuple[str, dict[str, int]]:
    try:
        return "", facts_of(simulate(seed, steps))
    except SimulationError as error:
        return str(error), {}


def live_sharded(seed: int, steps: int) -> tuple[str, dict[str, int]]:
    try:
        return "", facts_of_shards(simulate_shards(seed, steps))
    except SimulationError as error:
        return str(error), {}


def facts_of(world: World) -> dict[str, int]:
    ledger = world.ledger
    return {
        "lives": 1,
        "answers": world.answers,
        "crashes": world.crashes,
        "failures": world.shard.failures,
        "acknowledged": len(ledger.acknowledged),
        "finished": len(ledger.finished),
        "unchanged": len(ledger.unchanged),
        "notices": sum(session.heard for session in world.sessions),
    }


def facts_of_shards(world: ShardedWorld) -> dict[str, int]:
    ledgers = [shard.ledger for shard in world.shards]
    return {
        "lives": 1,
        "answers": world.answers,
        "crashes": world.crashes,
        "stops": world.stops,
        "links lost": world.network.lost,
        "failures": sum(shard.failures for shard in world.shards),
        "acknowledged": sum(len(ledger.acknowledged) for ledger in ledgers),
        "finished": sum(len(ledger.finished) for ledger in ledgers),
    }


def summary(totals: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in totals.items())
