"""Settled numbers take little room, in whatever order they come."""

from __future__ import annotations

import random

from penstock.torture.checker.folded import Folded


def test_consecutive_numbers_are_one_range_in_any_order() -> None:
    folded, numbers = Folded(), list(range(1, 1000))
    random.Random(1).shuffle(numbers)
    for number in numbers:
        folded.add(f"p.{number}")
    assert folded.count == 1
    assert "p.1" in folded
    assert "p.999" in folded
    assert "p.1000" not in folded
    assert "q.1" not in folded


def test_a_number_that_is_missing_is_not_contained() -> None:
    folded = Folded()
    for number in (1, 2, 4, 4):
        folded.add(f"p.{number}")
    assert folded.count == 2
    assert "p.3" not in folded
