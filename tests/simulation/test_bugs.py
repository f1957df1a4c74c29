"""The simulation finds bugs: each that is seeded on purpose is found by a seed.

`python -m tests.simulation --bug NAME --seed S` shows how. When the code changes, another seed may find it.
"""

from __future__ import annotations

import pytest

from tests.simulation.bugs import BUGS, seeded
from tests.simulation.many import LIVES, STEPS

SEEDS = {
    "back-too-early": 64,
    "lend-to-all": 0,
    "answer-twice": 0,
    "forget-in-flight": 0,
    "ready-is-enough": 0,
    "parts-mixed-up": 6,
    "frame-cut": 0,
    "skip-cursor": 9,
    "taken-too-early": 13,
    "stay-in-round": 4,
    "one-sync-for-all": 0,
    "no-fence": 6,
    "no-quorum": 0,
    "unknown-is-done": 5,
}
SEEDS_MORE = 60


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_that_is_seeded_on_purpose_is_found(name: str) -> None:
    first, world = SEEDS[name], BUGS[name].world
    with seeded(name):
        assert any(LIVES[world](seed, STEPS[world])[0] for seed in range(first, first + SEEDS_MORE))
