"""An hour of many schedules, with crashes and clocks that are set: each tick once."""

from __future__ import annotations

import pytest

from tests.simulation.schedules import ScheduleWorld
from tests.support.effort import LONG

SCHEDULES = 10_000 if LONG else 300
SECONDS = 3600


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(2))
def test_each_tick_of_an_hour_comes_once_whatever_the_power_and_the_clock_do(seed: int) -> None:
    world = ScheduleWorld(seed, SCHEDULES)
    world.live(SECONDS)
    assert world.check() > 12 * SCHEDULES
    assert world.crashes > 20
    assert world.jumps > 20
