"""Many programs, on twins of their own or on twins that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.twins.processes import pair
from tests.twins.programs import Program, program_of
from tests.twins.rows.tables import ROWS, beginning
from tests.twins.simulated import SIMULATED, simulated
from tests.twins.twins import Comparison, compare


def programs_of(seeds: range, steps: int, against: str) -> list[Program]:
    """Time passes in those that are simulated."""
    return [program_of(seed, ROWS, beginning, steps, is_timed=against in SIMULATED) for seed in seeds]


def alone(program: Program, against: str) -> Comparison:
    """On twins of its own."""
    if against in SIMULATED:
        with simulated(program.stamp, *SIMULATED[against]) as simulated_twins:
            return compare(program, *simulated_twins)
    with TemporaryDirectory() as folder, pair(Path(folder), against) as twins:
        return compare(program, *twins)


def comparisons(programs: Sequence[Program], against: str, processes: int) -> Iterator[Comparison]:
    """Real processes are shared by all programs; simulations are not, and run in so many processes."""
    if against not in SIMULATED:
        with TemporaryDirectory() as folder, pair(Path(folder), against) as twins:
            yield from (compare(program, *twins) for program in programs)
    elif processes == 1:
        yield from map(alone, programs, repeat(against))
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            try:
                yield from pool.map(alone, programs, repeat(against), chunksize=10)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
