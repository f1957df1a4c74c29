"""Some rows of decoded batches. A column is computed when it is asked for, once for all tables of a group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.storage.letters.columns import NUMBERS, PARTS, Part, Values
from penstock.storage.letters.forms import Mask
from penstock.storage.letters.rows import SLOTS, Array, Definitions, Rows
from penstock.storage.log.batch import Header


class Columns:
    """All columns of a group of batches."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._numbers: dict[str, Values] = {}
        self._parts: dict[str, Part] = {}

    def numbers(self, name: str) -> Values:
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = NUMBERS[name](self.rows)
        return found

    def part(self, name: str) -> Part:
        found = self._parts.get(name)
        if found is None:
            found = self._parts[name] = PARTS[name](self.rows)
        return found


class Table:
    """The chosen rows of a group of batches."""

    def __init__(self, columns: Columns, chosen: Array | None = None) -> None:
        self.columns = columns
        self.chosen = chosen  # The numbers of the rows; None: all of them.

    def __len__(self) -> int:
        return len(self.columns.rows.index) if self.chosen is None else len(self.chosen)

    def slice(self, start: int, count: int | None = None) -> Table:
        end = len(self) if count is None else min(len(self), start + count)
        return Table(self.columns, np.arange(start, end) if self.chosen is None else self.chosen[start:end])

    def filter(self, mask: Mask) -> Table:
        return Table(self.columns, np.flatnonzero(mask) if self.chosen is None else self.chosen[mask])

    def numbers(self, name: str) -> Values:
        """A column of numbers. The letter is the number of its character, a name is its number."""
        values, valid = self.columns.numbers(name)
        if self.chosen is None:
            return Values(values, valid)
        return Values(values[self.chosen], None if valid is None else valid[self.chosen])

    def filled(self, name: str, missing: int) -> Array:
        """A column of numbers, with this one where there is none."""
        values, valid = self.numbers(name)
        signed = values.astype(np.int64)
        return signed if valid is None else np.where(valid, signed, missing)

    def present(self, name: str) -> Mask | None:
        """Which rows have this part of the heap; None: none of them."""
        present = self.columns.part(name).present
        return present if present is None or self.chosen is None else present[self.chosen]

    def slots(self, name: str) -> Array:
        """For each row, the number of the slot in the heap that this part would be in."""
        index = self.columns.rows.index
        slots: Array = (index if self.chosen is None else index[self.chosen]) * SLOTS + self.columns.part(name).slot
        return slots

    def objects(self, name: str) -> list[Any]:
        """A column as Python's values, None where there is none."""
        if name in PARTS:
            return self._texts(name)
        values, valid = self.numbers(name)
        if name == "letter":
            return list(values.tobytes().decode("ascii"))
        if valid is None or valid.all():
            return list(values.tolist())
        found = values.astype(object)
        found[~valid] = None
        return list(found.tolist())

    def _texts(self, name: str) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(self)
        present = self.present(name)
        if present is None:
            return found
        rows, chosen = self.columns.rows, np.flatnonzero(present)
        slots, heap, bounds = self.slots(name)[chosen], rows.heap, rows.slot_bounds
        for at, start, end in zip(chosen.tolist(), bounds[slots].tolist(), bounds[slots + 1].tolist(), strict=True):
            found[at] = bytes(heap[start:end])
        return found


def table_of(batches: Iterable[tuple[Header, bytes]], names: Definitions | None = None) -> Table:
    """All the letters in these batches, in order. The names that they define are added to `names`."""
    return Table(Columns(Rows(list(batches), names)))
