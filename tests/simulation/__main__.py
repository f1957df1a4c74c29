"""One simulated life, or many: `python -m tests.simulation --seed S --steps N`."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.world import SimulationError, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--steps", type=int, default=3000, help="steps of each life")
    asked = parser.parse_args()
    for seed in range(asked.seed, asked.seed + asked.seeds):
        try:
            world = simulate(seed, asked.steps)
        except SimulationError as error:
            print(error)
            return 1
        print(
            f"seed {seed}: {world.answers} answers, {world.crashes} crashes, {world.failures} failures, "
            f"{len(world.ledger.acknowledged)} acknowledged, {len(world.ledger.finished)} finished"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
