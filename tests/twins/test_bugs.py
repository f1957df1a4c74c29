"""Programs show bugs: each that is seeded on purpose is found by a seed.

When the code changes, another seed may find it.
"""

from __future__ import annotations

import pytest

from tests.twins.bugs import BUGS
from tests.twins.many import alone, programs_of

SEEDS = {
    "a queue that is deleted stays in the policies of other shards": 168,
    "parts are carried out before permission is asked for": 14,
    "the beginning of all logs is refused": 2,
    "a process that stands still is not noticed": 5,
}
SEEDS_MORE = 200
STEPS = 25


@pytest.mark.parametrize("name", SEEDS)
def test_a_bug_that_is_seeded_on_purpose_is_found(name: str) -> None:
    seeds = range(SEEDS[name], SEEDS[name] + SEEDS_MORE)
    with BUGS[name]():
        assert any(alone(program, "simulated2").found for program in programs_of(seeds, STEPS, "simulated2"))
