"""One simulated life, or many: `python -m tests.simulation --seed S --seeds N --processes P`.

A life that breaks a promise is printed with its seed, which lives it again: `python -m tests.simulation --seed S`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.simulation.bugs import BUGS, seeded
from tests.simulation.many import LIVES, STEPS, lives, summary

_LINE_SECONDS = 30.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--steps", type=int, default=None, help="steps of each life")
    parser.add_argument("--processes", type=int, default=1, help="how many lives at once")
    parser.add_argument("--world", choices=LIVES, default="one", help="one broker, shards over workers, or nodes")
    parser.add_argument("--bug", choices=BUGS, help="seed a bug, which a life should find")
    asked = parser.parse_args()
    with seeded(asked.bug) if asked.bug else nullcontext():
        return _live(asked)


def _live(asked: argparse.Namespace) -> int:
    began = shown = time.monotonic()
    seeds = range(asked.seed, asked.seed + asked.seeds)
    totals: Counter[str] = Counter()
    world = BUGS[asked.bug].world if asked.bug else asked.world
    for story, facts in lives(LIVES[world], seeds, asked.steps or STEPS[world], asked.processes):
        if story:
            print(story)
            return 1
        totals.update(facts)
        if time.monotonic() > shown + _LINE_SECONDS:
            shown = time.monotonic()
            print(summary(totals), flush=True)
    print(f"{summary(totals)}, {time.monotonic() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
