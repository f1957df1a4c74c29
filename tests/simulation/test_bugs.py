"""The simulation finds bugs: each that is seeded on purpose is found by a seed.

`python -m tests.simulation --bug NAME --seed S` shows how. When the code changes, another seed may find it.
"""

from __future__ import annotations

import pytest

from tests.simulation.bugs import BUGS, seeded
from tests.simulation.many import LIVES, STEPS

SEEDS = {
    "answer-twice": 0,
    "forget-in-flight": 0,
    "ready-is-enough": 0,
    "late-greeting": 56,
    "parts-mixed-up": 1,
    "frame-cut": 5,
    "no-fence": 2,
    "no-quorum": 0,
    "unknown-is-done": 15,
}
SEEDS_MORE = 200


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_is_seeded_on_purpose_is_found(name: str) -> None:
    first, life = SEEDS[name], LIVES[BUGS[name].world]
    with seeded(name):
        assert any(life(seed, STEPS)[0] for seed in range(first, first + SEEDS_MORE))
