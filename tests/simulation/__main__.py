"""One simulated life, or many: `python -m tests.simulation --seed S --seeds N --processes P`.

A life that breaks a promise is printed with its seed, which lives it again: `python -m tests.simulation --seed S`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

from tests.simulation.world import SimulationError, World, simulate

STEPS = 3000
_LINE_SECONDS = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each life")
    parser.add_argument("--processes", type=int, default=1, help="how many lives at once")
    asked = parser.parse_args()
    began = shown = time.monotonic()
    seeds = range(asked.seed, asked.seed + asked.seeds)
    totals: Counter[str] = Counter()
    for story, facts in lives(seeds, asked.steps, asked.processes):
        if story:
            print(story)
            return 1
        totals.update(facts)
        if time.monotonic() > shown + _LINE_SECONDS:
            shown = time.monotonic()
            print(summary(totals), flush=True)
    print(f"{summary(totals)}, {time.monotonic() - began:.0f} s")
    return 0


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


if __name__ == "__main__":
    sys.exit(main())
