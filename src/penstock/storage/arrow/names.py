"""What the numbers of names and queues stand for, as Arrow dictionaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.storage.letters.forms import Mask
from penstock.storage.letters.rows import Array

_TABLE_SIZE_MAX = 1 << 22


class Names:
    """The texts of numbers. Definitions in decoded batches add to them; others may be given at the start."""

    def __init__(self, texts: Mapping[int, str] | None = None, queues: Mapping[int, str] | None = None) -> None:
        self._texts = _Texts(dict(texts or {}))
        self._queues = _Texts(dict(queues or {}))

    def define(self, number: int, text: str) -> None:
        self._texts.define(number, text)

    def define_queue(self, number: int, name: str) -> None:
        self._queues.define(number, name)

    def queue_name(self, number: int) -> str | None:
        return self._queues.known.get(number)

    def texts(self, numbers: Array) -> pa.DictionaryArray:
        return self._texts.encode(numbers)

    def queue_names(self, numbers: Array) -> pa.DictionaryArray:
        return self._queues.encode(numbers)


class _Texts:
    """Numbers to texts, as an Arrow dictionary that is rebuilt only when it has changed."""

    def __init__(self, known: dict[int, str]) -> None:
        self.known = known
        self._dictionary: pa.Array | None = None
        self._table: NDArray[np.int32] = np.full(1, -1, dtype=np.int32)  # By number: the index of its text, or -1.
        self._sparse: NDArray[np.int64] | None = None  # The numbers in order, if they are too large for a table.

    def define(self, number: int, text: str) -> None:
        if self.known.get(number) != text:
            self.known[number] = text
            self._dictionary = None

    def encode(self, numbers: Array) -> pa.DictionaryArray:
        if self._dictionary is None:
            self._build()
        indices = self._indices(numbers)
        valid = indices >= 0
        array = primitive(pa.int32(), indices * valid, valid)
        return pa.DictionaryArray.from_arrays(array, self._dictionary, safe=False)

    def _build(self) -> None:
        """The texts in the order of their numbers, which may have gaps. Number 0 is no name."""
        pairs = sorted(pair for pair in self.known.items() if pair[0])
        self._dictionary = pa.array([text for _, text in pairs] or [""], type=pa.utf8())
        numbers = np.array([number for number, _ in pairs], dtype=np.int64)
        last = pairs[-1][0] if pairs else 0
        if last < _TABLE_SIZE_MAX:
            self._table = np.full(last + 2, -1, dtype=np.int32)  # One more, for all larger numbers: they are unknown.
            self._table[numbers] = np.arange(len(pairs))
            self._sparse = None
        else:
            self._sparse = numbers

    def _indices(self, numbers: Array) -> NDArray[np.int32]:
        """The index of each number's text, or -1. A table is ten times as fast as a search."""
        if self._sparse is None:
            return self._table.take(numbers, mode="clip")
        indices = np.searchsorted(self._sparse, numbers)
        found = self._sparse.take(indices, mode="clip") == numbers
        return np.where(found, indices, -1).astype(np.int32)


def bits(valid: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def primitive(kind: Any, values: Array, valid: Mask | None = None) -> pa.Array:
    """Bytes as they are: the type may be another one of the same width."""
    buffers = [None if valid is None else bits(valid), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(values), buffers)
