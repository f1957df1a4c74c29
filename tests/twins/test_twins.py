"""One process and several answer programs of requests alike, but for the list of differences.

`python -m tests.twins --seed S --against simulated2` shows a difference with the smallest program that has it.

TORTURE=long      300 programs against real workers and nodes, 10,000 in simulations
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.broker.shard_map import ShardMap
from tests.support.effort import LONG
from tests.twins.differences import DIFFERENCES, Difference
from tests.twins.examples import ALIKE, EXAMPLES
from tests.twins.many import alone, programs_of
from tests.twins.processes import SHARDS, ProcessTwin, pair
from tests.twins.programs import Hang, Pass, Program
from tests.twins.simulated import SIMULATED
from tests.twins.twins import compare, shown

STEPS = 25
PROGRAMS = {"workers2": 30, "nodes3": 12} if not LONG else {"workers2": 100, "workers3": 100, "nodes3": 100}
SIMULATED_PROGRAMS = 10_000 if LONG else 40
WORKERS_MD = Path(__file__).parents[2] / "docs/workers.md"


@pytest.fixture(scope="module", params=PROGRAMS)
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProcessTwin]]:
    def new_store(shards: int) -> str:
        store: str = request.getfixturevalue("postgres").new_store(shards)
        return store

    with pair(tmp_path_factory.mktemp("twins"), request.param, new_store) as both:
        yield [*both]


def test_programs_are_answered_alike(twins: list[ProcessTwin], request: pytest.FixtureRequest) -> None:
    against = request.node.callspec.params["twins"]
    for program in programs_of(range(PROGRAMS[against]), STEPS, against):
        found = compare(program, *twins).found
        assert not found, f"program {program.stamp}: {found}\n{shown(program)}"


@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("against", SIMULATED)
def test_programs_are_answered_alike_while_time_passes(against: str) -> None:
    for program in programs_of(range(SIMULATED_PROGRAMS // len(SIMULATED)), STEPS, against):
        found = alone(program, against).found
        assert not found, f"program {program.stamp}: {found}\n{shown(program)}"


def _stamps() -> Iterator[str]:
    """With each of them, the queues b and d and the channel h are in other shards than the queue a."""
    homes = [ShardMap(shards).of_name for shards in {*SHARDS.values()}]
    for stamp in (f"apart{number}" for number in count()):
        if all(home(f"a-{stamp}") not in {home(f"{letter}-{stamp}") for letter in "bdh"} for home in homes):
            yield stamp


def _id_of(value: Difference | str) -> str:
    return value if isinstance(value, str) else value.name


@pytest.mark.parametrize(("difference", "stamp"), [*zip(DIFFERENCES, _stamps(), strict=False)], ids=_id_of)
def test_each_difference_still_occurs(difference: Difference, stamp: str, twins: list[ProcessTwin]) -> None:
    program = Program(stamp, EXAMPLES[difference.name](stamp))
    is_simulated = any(isinstance(step, Hang | Pass) for step in program.steps)
    comparison = alone(program, "simulated2") if is_simulated else compare(program, *twins)
    assert (comparison.found, difference.name in comparison.met) == (None, True)


@pytest.mark.parametrize(("name", "stamp"), [*zip(ALIKE, _stamps(), strict=False)], ids=lambda each: each)
def test_what_was_answered_otherwise_is_answered_alike(name: str, stamp: str) -> None:
    assert alone(Program(stamp, ALIKE[name](stamp)), "simulated2").found is None


def test_the_list_of_differences_is_what_the_docs_say() -> None:
    page = re.sub(r"\s+", " ", WORKERS_MD.read_text())
    assert [each.name for each in DIFFERENCES if each.docs not in page] == []
