"""The broker's clock follows the wall clock, and never jumps."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.broker.writer.loop import Loop
from penstock.engine.engine import Engine
from penstock.limits import CLOCK_SLOWNESS, SECOND_NS
from penstock.model.commands import CreateQueue, Fetch, NewMessage, Publish
from penstock.model.schedules import Schedule, SetSchedule
from penstock.model.settings import QueueSettings
from penstock.server.clock import Clock
from penstock.storage.memory import MemoryLog

START = 1_700_000_000 * SECOND_NS


class Hands:
    """Two clocks, turned by hand: time passes on both, and the wall clock can be set."""

    def __init__(self) -> None:
        self.wall = START
        self.monotonic = 5 * SECOND_NS
        self.clock = Clock(lambda: self.wall, lambda: self.monotonic)

    def wait(self, seconds: float) -> None:
        passed = round(seconds * SECOND_NS)
        self.wall += passed
        self.monotonic += passed

    def set(self, seconds: float) -> None:
        self.wall += round(seconds * SECOND_NS)

    @property
    def behind(self) -> float:
        """Seconds that the clock is behind the wall clock."""
        return (self.wall - self.clock()) / SECOND_NS


def test_the_clock_tells_the_time_of_the_wall() -> None:
    hands = Hands()
    assert hands.clock() == START
    hands.wait(3600)
    assert hands.clock.follow() == 0
    assert hands.behind == 0


@pytest.mark.parametrize("seconds", [30, -30, 0.5, -0.5, 86400])
def test_a_clock_that_was_set_is_followed_slowly_until_it_is_right(seconds: float) -> None:
    hands = Hands()
    hands.wait(10)
    before = hands.clock()
    hands.set(seconds)
    assert hands.clock.follow() == seconds * SECOND_NS
    assert hands.clock() == before, "nothing jumps"
    hands.wait(abs(seconds) * CLOCK_SLOWNESS / 2)
    assert hands.behind == pytest.approx(seconds / 2)
    hands.wait(abs(seconds) * CLOCK_SLOWNESS)
    assert hands.behind == 0, "and then it is right, also if nobody looks"
    assert hands.clock.follow() == 0
    assert hands.behind == 0


def test_a_second_that_passes_is_never_shorter_or_longer_than_a_tenth() -> None:
    hands = Hands()
    for seconds in (100, -5000, 3, 0, 2):
        hands.set(seconds)
        hands.clock.follow()
        for _ in range(50):
            before = hands.clock()
            hands.wait(1)
            hands.clock.follow()
            assert 0.9 * SECOND_NS <= hands.clock() - before <= 1.1 * SECOND_NS


def test_the_clock_never_goes_back() -> None:
    hands = Hands()
    hands.set(-3600)
    last = hands.clock()
    for _ in range(1000):
        hands.clock.follow()
        hands.wait(0.001)
        assert hands.clock() > last
        last = hands.clock()


def test_a_wall_clock_that_is_set_back_and_forth_ends_in_the_right_time() -> None:
    hands = Hands()
    for seconds in (20, -45, 7):
        hands.set(seconds)
        hands.clock.follow()
        hands.wait(3)
    hands.clock.follow()
    hands.wait(1000)
    assert hands.behind == 0


def test_two_clocks_that_are_not_read_at_the_same_moment_are_not_corrected() -> None:
    hands = Hands()
    hands.set(0.0005)
    assert hands.clock.follow() == 0


@pytest.mark.parametrize("seconds", [0.5, 3600, 86400, 10 * 365 * 86400])
def test_a_clock_that_goes_on_after_a_later_time_converges_with_the_wall(seconds: float) -> None:
    hands = Hands()
    others = hands.clock.another()
    ahead = round(seconds * SECOND_NS)
    assert hands.clock.go_on_after(START + ahead) == ahead
    assert hands.clock() == START + ahead
    assert others() == START, "each shard has its own"
    for _ in range(100):
        before = hands.clock()
        hands.wait(1)
        hands.clock.follow()
        assert 0.9 * SECOND_NS <= hands.clock() - before <= SECOND_NS
    hands.wait(seconds * CLOCK_SLOWNESS)
    assert hands.behind == 0
    assert hands.clock.go_on_after(hands.wall - SECOND_NS) == 0, "a log that is replaced, after the time it had"
    assert hands.behind == 0


def test_a_clock_that_is_set_while_it_converges_stays_within_a_tenth() -> None:
    hands = Hands()
    hands.clock.go_on_after(START + 100 * SECOND_NS)
    for seconds in (-50, 200, -10, 60):
        hands.set(seconds)
        hands.clock.follow()
        before = hands.clock()
        hands.wait(20)
        hands.clock.follow()
        assert 18 * SECOND_NS <= hands.clock() - before <= 22 * SECOND_NS
    hands.wait(5000)
    assert hands.behind == 0


class Timers:
    """A scheduler that notes what it is asked for."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self._soon: list[Callable[[], None]] = []

    def soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    from_thread = soon

    def end_turn(self) -> None:
        while self._soon:
            self._soon.pop(0)()

    def after(self, delay_ns: int, _: Callable[[], None]) -> Timers:
        self.delays.append(delay_ns / SECOND_NS)
        return self

    def cancel(self) -> None:
        """Nothing is ever called."""


def test_timers_are_set_again_while_the_clock_is_corrected() -> None:
    hands, timers = Hands(), Timers()
    loop = Loop(Engine(), MemoryLog(), hands.clock, timers)
    loop.submit(CreateQueue("work", QueueSettings(visibility_ns=100 * SECOND_NS)), lambda _: None)
    loop.submit(Publish("work", [NewMessage(b"hello")]), lambda _: None)
    loop.submit(Fetch("work"), lambda _: None)
    timers.end_turn()
    assert timers.delays[-1] == pytest.approx(100)
    hands.set(60)
    hands.clock.follow()
    hands.wait(50)
    loop.rearm()
    assert timers.delays[-1] == pytest.approx(45), "55 seconds of the lease are over"


def test_the_timer_of_schedules_goes_by_the_wall_and_that_of_leases_by_the_clock() -> None:
    hands, timers = Hands(), Timers()
    hands.clock.go_on_after(START + 3600 * SECOND_NS)
    loop = Loop(Engine(), MemoryLog(), hands.clock, timers, wall=hands.clock.wall)
    loop.submit(CreateQueue("work", QueueSettings(visibility_ns=100 * SECOND_NS)), lambda _: None)
    loop.submit(SetSchedule("beat", Schedule(queue="work", every_ns=60 * SECOND_NS)), lambda _: None)
    assert timers.delays[-1] == pytest.approx(60)
    loop.submit(Publish("work", [NewMessage(b"hello")]), lambda _: None)
    loop.submit(Fetch("work"), lambda _: None)
    timers.end_turn()
    assert timers.delays[-1] == pytest.approx(100)
    hands.set(40)
    loop.rearm()
    assert timers.delays[-2:] == pytest.approx([100, 20])
