"""The same programs of requests on one process and on several: `python -m tests.twins --seeds N --against workers2`.

The first difference that is not in the list is shown with the smallest program that has it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.twins.processes import AGAINST, pair
from tests.twins.programs import Program, program_of
from tests.twins.rows.tables import ROWS, beginning
from tests.twins.twins import Found, compare, shown, shrunk

STEPS = 25


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.twins", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds from there on")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of each program")
    parser.add_argument("--against", choices=AGAINST, default="workers2", help="what is compared with one process")
    parser.add_argument("--keep-going", action="store_true", help="show all differences, without shrinking")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        return _run(asked, Path(folder))


def _run(asked: argparse.Namespace, folder: Path) -> int:
    began, failures, steps = time.monotonic(), 0, 0
    met: set[str] = set()
    with pair(folder, asked.against) as twins:
        for seed in range(asked.seed, asked.seed + asked.seeds):
            program = program_of(seed, ROWS, beginning, asked.steps, is_timed=False)
            comparison = compare(program, *twins)
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

    def tried(shorter: Program) -> Found | None:
        with TemporaryDirectory() as folder, pair(Path(folder), against) as twins:
            return compare(shorter, *twins).found

    def differs(shorter: Program) -> bool:
        tried_found = tried(shorter)
        return tried_found is not None and tried_found.kind == found.kind

    if not differs(program):
        print("it does not differ on twins of its own")
        return
    smallest = shrunk(program, differs)
    print(f"{shown(smallest)}\n{tried(smallest)}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
