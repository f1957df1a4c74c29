"""Memory over time: one figure a minute, and whether it stays flat after the warm-up."""

from __future__ import annotations

from collections.abc import Callable

from penstock.torture.memory import Memory

MIB = 1 << 20


def after(minutes: int, size_at: Callable[[int], int]) -> Memory:
    memory = Memory()
    for second in range(0, 60 * minutes + 60, 10):
        memory.sample(second, size_at(second), MIB)
    return memory


def test_a_broker_that_needs_the_same_after_its_warm_up_is_flat() -> None:
    flat = after(20, lambda second: (40 if second < 200 else 60 + second % 30 // 10) * MIB).flatness()
    assert flat is not None
    assert flat.is_flat
    assert flat.broker_bytes == 61 * MIB


def test_a_broker_that_grows_is_not_flat() -> None:
    flat = after(20, lambda second: (60 + second // 60 * 2) * MIB).flatness()
    assert flat is not None
    assert not flat.is_flat
    assert abs(flat.farthest) > 0.1


def test_samples_of_a_broker_that_is_dead_do_not_count() -> None:
    flat = after(20, lambda second: 0 if second % 20 else 60 * MIB).flatness()
    assert flat is not None
    assert flat.farthest == 0


def test_a_short_run_proves_nothing() -> None:
    assert after(4, lambda _: MIB).flatness() is None


def test_an_hour_takes_sixty_numbers() -> None:
    assert len(after(60, lambda _: MIB).minutes) == 60
