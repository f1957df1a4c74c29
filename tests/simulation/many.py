"""Many simulated lives, in several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from multiprocessing import get_context
from typing import TypeVar

from tests.simulation.everywhere import COPIES
from tests.simulation.nodes import NodesWorld, simulate_nodes
from tests.simulation.requests import SimulationError
from tests.simulation.sharded import ShardedWorld, simulate_shards
from tests.simulation.world import World, simulate

STEPS = {"one": 3000, "shards": 5000, "nodes": 5000}

W = TypeVar("W")
Lived = tuple[str, dict[str, int]]  # Its story if a promise was broken, and what happened.
Life = Callable[[int, int], Lived]  # By seed and steps.


def lives(life: Life, seeds: range, steps: int, processes: int) -> Iterator[Lived]:
    """Each life as it ends."""
    if processes == 1:
        yield from map(life, seeds, repeat(steps))
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            yield from pool.map(life, seeds, repeat(steps), chunksize=10)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _life(simulated: Callable[[int, int], W], facts: Callable[[W], dict[str, int]], seed: int, steps: int) -> Lived:
    try:
        return "", facts(simulated(seed, steps))
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
    return {
        "lives": 1,
        "answers": world.answers,
        "unknown": world.unknown,
        "crashes": world.crashes,
        "stops": world.stops,
        "links lost": world.network.lost,
        "failures": world.failures,
        "joint commits": world.commits["joint"],
        "failures of a joint commit": world.commits["joint failures"],
        "acknowledged": sum(len(ledger.acknowledged) for ledger in world.ledgers),
        "sent on": world.everywhere.came.total(),
        "copied": sum(len(world.everywhere.letters.get(name, ())) for name in COPIES),
        "finished": len(world.everywhere.finished),
        "versions": sum(map(len, world.everywhere.versions.learned.values())),
        "unchanged": len(world.everywhere.versions.equals),
    }


def facts_of_nodes(world: NodesWorld) -> dict[str, int]:
    return facts_of_shards(world) | {"moves": world.moves, "failovers": world.store.failovers}


LIVES: dict[str, Life] = {
    "one": partial(_life, simulate, facts_of),
    "shards": partial(_life, simulate_shards, facts_of_shards),
    "nodes": partial(_life, simulate_nodes, facts_of_nodes),
}
"""One broker; several workers with their shards; several nodes with a replicated store."""


def summary(totals: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in totals.items())
