"""The simulation finds bugs: each that is seeded on purpose is found by a seed.

`python -m tests.simulation --shards --bug NAME --seed S` shows how. When the code changes, another seed may find it.
"""

from __future__ import annotations

import pytest

from tests.simulation.bugs import BUGS, seeded
from tests.simulation.many import STEPS, live_sharded

SEEDS = {
    "answer-twice": 1,
    "forget-in-flight": 0,
    "ready-is-enough": 1,
    "late-greeting": 87,
    "parts-mixed-up": 1,
    "frame-cut": 5,
}
SEEDS_MORE = 200


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_is_seeded_on_purpose_is_found(name: str) -> None:
    first = SEEDS[name]
    with seeded(name):
        assert any(live_sharded(seed, STEPS)[0] for seed in range(first, first + SEEDS_MORE))
