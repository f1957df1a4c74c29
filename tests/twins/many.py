"""Many programs, on twins of their own or on twins that they share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support import postgres
from tests.twins.processes import NODES, ProcessTwin, pair
from tests.twins.programs import Program, hanging_program_of, program_of
from tests.twins.rows.tables import ROWS, beginning
from tests.twins.simulated import SIMULATED, simulated
from tests.twins.twins import Comparison, compare

HANGING = 6  # In one of so many simulated programs a process stands still.


def programs_of(seeds: range, steps: int, against: str) -> list[Program]:
    """Time passes in those that are simulated, and in some a process stands still."""
    return [program_for(seed, steps, against) for seed in seeds]


def program_for(seed: int, steps: int, against: str) -> Program:
    if against in SIMULATED and seed % HANGING == HANGING - 1:
        return hanging_program_of(seed, ROWS, beginning, steps)
    return program_of(seed, ROWS, beginning, steps, is_timed=against in SIMULATED)


def alone(program: Program, against: str) -> Comparison:
    """On twins of its own."""
    if against in SIMULATED:
        with simulated(program.stamp, *SIMULATED[against]) as simulated_twins:
            return compare(program, *simulated_twins)
    with real(against) as twins:
        return compare(program, *twins)


@contextmanager
def real(against: str) -> Iterator[tuple[ProcessTwin, ProcessTwin]]:
    with ExitStack() as stack:
        server = stack.enter_context(postgres.started()) if against in NODES else None
        folder = Path(stack.enter_context(TemporaryDirectory()))
        yield stack.enter_context(pair(folder, against, server.new_store if server else _no_store))


def _no_store(_: int) -> str:
    raise AssertionError("only nodes have one")


def comparisons(programs: Sequence[Program], against: str, processes: int) -> Iterator[Comparison]:
    """Real processes are shared by all programs; simulations are not, and run in so many processes."""
    if against not in SIMULATED:
        with real(against) as twins:
            yield from (compare(program, *twins) for program in programs)
    elif processes == 1:
        yield from map(alone, programs, repeat(against))
    else:
        with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
            try:
                yield from pool.map(alone, programs, repeat(against), chunksize=10)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
