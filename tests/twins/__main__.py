"""The same programs of requests on one process and on several: `python -m tests.twins --seeds N --against workers2`.
Against `simulated2` and `simulated3` both are simulated, and time passes.

The first difference that is not in the list is shown with the smallest program that has it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.twins.processes import AGAINST, pair
from tests.twins.programs import Program, program_of
from tests.twins.rows.tables import ROWS, beginning
from tests.twins.simulated import SIMULATED, simulated
from tests.twins.twins import Comparison, Found, compare, shown, shrunk

STEPS = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.twins", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each program")
    parser.add_argument(
        "--against", choices=[*AGAINST, *SIMULATED], default="workers2", help="what is compared with one process"
    )
    parser.add_argument("--processes", type=int, default=1, help="how many simulations at once")
    parser.add_argument("--keep-going", action="store_true", help="show all differences, without shrinking")
    asked = parser.parse_args()
    return _run(asked)


def _run(asked: argparse.Namespace) -> int:
    began, failures, steps = time.monotonic(), 0, 0
    met: set[str] = set()
    for program, comparison in _comparisons(asked):
        met |= comparison.met
        steps += comparison.steps
        if comparison.found:
            failures += 1
            print(f"program {program.stamp}: {comparison.found}", flush=True)
            if not asked.keep_going:
                _show_smallest(program, comparison.found, asked.against)
                break
    seconds = f"{time.monotonic() - began:.0f} s"
    print(f"{asked.seeds} programs, {steps} steps, {failures} differ, {seconds}; met: {sorted(met)}")
    return bool(failures)


def _comparisons(asked: argparse.Namespace) -> Iterator[tuple[Program, Comparison]]:
    seeds = range(asked.seed, asked.seed + asked.seeds)
    is_timed = asked.against in SIMULATED
    programs = (program_of(seed, ROWS, beginning, asked.steps, is_timed=is_timed) for seed in seeds)
    if is_timed:
        yield from _simulated(list(programs), asked.against, asked.processes)
        return
    with TemporaryDirectory() as folder, pair(Path(folder), asked.against) as twins:
        yield from ((program, compare(program, *twins)) for program in programs)


def _simulated(programs: list[Program], against: str, processes: int) -> Iterator[tuple[Program, Comparison]]:
    if processes == 1:
        yield from ((program, _compared(program, against)) for program in programs)
        return
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        try:
            yield from zip(programs, pool.map(_compared, programs, repeat(against), chunksize=10), strict=True)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _compared(program: Program, against: str) -> Comparison:
    """On twins of its own."""
    if against in SIMULATED:
        with simulated(program.stamp, *SIMULATED[against]) as simulated_twins:
            return compare(program, *simulated_twins)
    with TemporaryDirectory() as folder, pair(Path(folder), against) as twins:
        return compare(program, *twins)


def _show_smallest(program: Program, found: Found, against: str) -> None:
    """Each try has twins of its own: the names of a program are known to those that have played it."""

    def differs(shorter: Program) -> bool:
        tried = _compared(shorter, against).found
        return tried is not None and tried.kind == found.kind

    if not differs(program):
        print("it does not differ on twins of its own")
        return
    smallest = shrunk(program, differs)
    print(f"{shown(smallest)}\n{_compared(smallest, against).found}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
