"""Many simulated lives, in several processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.simulation.world import SimulationError, World, simulate

STEPS = 3000


def lives(seeds: range, steps: int, processes: int) -> Iterator[tuple[str, dict[str, int]]]:
    """Each life as it ends: its story if a promise was broken, and what happened in it."""
    if processes == 1:
        yield from map(partial(live, steps=steps), seeds)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            yield from pool.map(partial(live, steps=steps), seeds, chunksize=10)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def live(seed: int, steps: int) -> tuple[str, dict[str, int]]:
    try:
        return "", facts_of(simulate(seed, steps))
    except SimulationError as error:
        return str(error), {}


def facts_of(world: World) -> dict[str, int]:
    ledger = world.ledger
    return {
        "lives": 1,
        "answers": world.answers,
        "crashes": world.crashes,
        "failures": world.failures,
        "acknowledged": len(ledger.acknowledged),
        "finished": len(ledger.finished),
        "unchanged": len(ledger.unchanged),
        "notices": sum(session.heard for session in world.sessions),
    }


def summary(totals: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in totals.items())
