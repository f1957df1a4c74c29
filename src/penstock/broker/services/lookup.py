"""Maps the numbers of a column to other numbers, with one gather for the whole column."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_UNSEEN = -1
_TABLE_SIZE_MAX = 1 << 22  # Larger numbers are looked up one by one.


class Lookup:
    """`find` is called once for each number, when it is first seen. It never returns -1."""

    def __init__(self, find: Callable[[int], int]) -> None:
        self._find = find
        self._table = np.full(256, _UNSEEN, dtype=np.int32)
        self._far: dict[int, int] = {}  # The numbers in columns with a number too large for the table.

    def __call__(self, numbers: Array) -> Array:
        if not len(numbers):
            return numbers
        top = int(numbers.max())
        if top >= _TABLE_SIZE_MAX:
            return self._look_far(numbers)
        if top >= len(self._table):
            size = min(max(top + 1, 2 * len(self._table)), _TABLE_SIZE_MAX)
            grown = np.full(size, _UNSEEN, dtype=np.int32)
            grown[: len(self._table)] = self._table
            self._table = grown
        found: Array = self._table.take(numbers)
        unseen = numbers[found == _UNSEEN]
        if len(unseen):
            for number in np.unique(unseen).tolist():
                self._table[number] = self._find(number)
            found = self._table.take(numbers)
        return found

    def _look_far(self, numbers: Array) -> Array:
        distinct, places = np.unique(numbers, return_inverse=True)
        for number in distinct.tolist():
            if number not in self._far:
                seen = int(self._table[number]) if number < len(self._table) else _UNSEEN
                self._far[number] = self._find(number) if seen == _UNSEEN else seen
        found: Array = np.array([self._far[number] for number in distinct.tolist()], dtype=np.int32)[places]
        return found
