"""Arrow arrays from numpy arrays, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[Any]
Mask = NDArray[np.bool_]


def bits(valid: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def bounds_of(sizes: Array) -> NDArray[np.int32]:
    """Where each of some values ends, after a leading 0."""
    bounds = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds


def primitive(kind: Any, values: Array, valid: Mask | None = None) -> pa.Array:
    """Bytes as they are: the type may be another one of the same width."""
    buffers = [None if valid is None else bits(valid), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(values), buffers)
