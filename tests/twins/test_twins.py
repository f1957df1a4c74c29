"""One process and several answer programs of requests alike, but for the list of differences.

`python -m tests.twins --seed S --against simulated2` shows a difference with the smallest program that has it.

TORTURE=long      300 programs against real workers, 10,000 in simulations
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.server.shards.shard_map import ShardMap
from tests.support.effort import LONG
from tests.twins.differences import DIFFERENCES, Difference
from tests.twins.examples import EXAMPLES
from tests.twins.processes import SHARDS, ProcessTwin, pair
from tests.twins.programs import Program, program_of
from tests.twins.rows.tables import ROWS, beginning
from tests.twins.simulated import SIMULATED, simulated
from tests.twins.twins import compare, shown

STEPS = 25
PROGRAMS = 300 if LONG else 30
SIMULATED_PROGRAMS = 10_000 if LONG else 40
WORKERS_MD = Path(__file__).parents[2] / "docs/workers.md"


@pytest.fixture(scope="module", params=["workers2", *(["workers3"] if LONG else [])])
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProcessTwin]]:
    with pair(tmp_path_factory.mktemp("twins"), request.param) as both:
        yield [*both]


def test_programs_are_answered_alike(twins: list[ProcessTwin]) -> None:
    for seed in range(PROGRAMS):
        program = program_of(seed, ROWS, beginning, STEPS, is_timed=False)
        found = compare(program, *twins).found
        assert not found, f"seed {seed}: {found}\n{shown(program)}"


@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("against", SIMULATED)
def test_programs_are_answered_alike_while_time_passes(against: str) -> None:
    for seed in range(SIMULATED_PROGRAMS // len(SIMULATED)):
        program = program_of(seed, ROWS, beginning, STEPS, is_timed=True)
        with simulated(program.stamp, *SIMULATED[against]) as simulated_twins:
            found = compare(program, *simulated_twins).found
        assert not found, f"seed {seed}: {found}\n{shown(program)}"


def _stamps() -> Iterator[str]:
    """With each of them, the queues b and d and the channel h are in other shards than the queue a."""
    home = ShardMap(min(SHARDS.values())).of_name
    for stamp in (f"apart{number}" for number in count()):
        if home(f"a-{stamp}") not in {home(f"{letter}-{stamp}") for letter in "bdh"}:
            yield stamp


def _id_of(value: Difference | str) -> str:
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize(("difference", "stamp"), [*zip(DIFFERENCES, _stamps(), strict=False)], ids=_id_of)
def test_each_difference_still_occurs(difference: Difference, stamp: str, twins: list[ProcessTwin]) -> None:
    comparison = compare(Program(stamp, EXAMPLES[difference.name](stamp)), *twins)
    assert (comparison.found, difference.name in comparison.met) == (None, True)


def test_the_list_of_differences_is_what_the_docs_say() -> None:
    page = re.sub(r"\s+", " ", WORKERS_MD.read_text())
    assert [each.name for each in DIFFERENCES if each.docs not in page] == []
