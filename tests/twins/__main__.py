"""The same programs of requests on one process and on several: `python -m tests.twins --seeds N --against workers2`.
Against `simulated2` and `simulated3` both are simulated: time passes, and in some programs a process stands still.

The first difference that is not in the list is shown with the smallest program that has it.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.twins.many import alone, comparisons, programs_of
from tests.twins.processes import AGAINST, NODES
from tests.twins.programs import Program
from tests.twins.simulated import SIMULATED
from tests.twins.twins import Found, shown, shrunk

STEPS = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.twins", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each program")
    parser.add_argument(
        "--against",
        choices=[*AGAINST, *NODES, *SIMULATED],
        default="simulated2",
        help="what is compared with one process",
    )
    parser.add_argument("--processes", type=int, default=1, help="how many simulations at once")
    parser.add_argument("--keep-going", action="store_true", help="show all differences, without shrinking")
    return _run(parser.parse_args())


def _run(asked: argparse.Namespace) -> int:
    began, failures, steps = time.monotonic(), 0, 0
    met: set[str] = set()
    seeds = range(asked.seed, asked.seed + asked.seeds)
    programs = programs_of(seeds, asked.steps, asked.against)
    compared = comparisons(programs, asked.against, asked.processes)
    for seed, program, comparison in zip(seeds, programs, compared, strict=True):
        met |= comparison.met
        steps += comparison.steps
        if comparison.found:
            failures += 1
            print(f"seed {seed}: {comparison.found}", flush=True)
            if not asked.keep_going:
                _show_smallest(program, comparison.found, asked.against)
                break
    seconds = f"{time.monotonic() - began:.0f} s"
    print(f"{asked.seeds} programs, {steps} steps, {failures} differ, {seconds}; met: {sorted(met)}")
    return bool(failures)


def _show_smallest(program: Program, found: Found, against: str) -> None:
    """Each try has twins of its own: the names of a program are known to those that have played it."""

    def differs(shorter: Program) -> bool:
        tried = alone(shorter, against).found
        return tried is not None and tried.kind == found.kind

    if not differs(program):
        print("it does not differ on twins of its own")
        return
    smallest = shrunk(program, differs)
    print(f"{shown(smallest)}\n{alone(smallest, against).found}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
