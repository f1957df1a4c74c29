"""Readers of the Event Log look numbers of names up: small ones in a table, large ones one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.broker.services.lookup import Lookup
from penstock.limits import NAME_NUMBER_MAX

numbers = st.one_of(st.integers(0, 5000), st.integers(0, NAME_NUMBER_MAX))


@given(st.lists(st.lists(numbers, max_size=10), max_size=6))
@example([[1 << 21], [(1 << 21) + 1]])
def test_each_number_is_looked_up_once_and_found_again(columns: list[list[int]]) -> None:
    asked: list[int] = []

    def find(number: int) -> int:
        asked.append(number)
        return number % 1000

    lookup = Lookup(find)
    for column in columns:
        found = lookup(np.array(column, dtype=np.uint32))
        assert found.tolist() == [number % 1000 for number in column]
    assert len(lookup._table) <= 1 << 22
    assert set(asked) == {number for column in columns for number in column}


def test_a_number_in_the_table_is_not_looked_up_again_beside_one_that_is_far() -> None:
    asked: list[int] = []

    def find(number: int) -> int:
        asked.append(number)
        return 7

    lookup = Lookup(find)
    lookup(np.array([1, 2], dtype=np.uint32))
    assert lookup(np.array([1, 2, 1 << 30], dtype=np.uint32)).tolist() == [7, 7, 7]
    assert asked == [1, 2, 1 << 30]
