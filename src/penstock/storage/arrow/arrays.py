"""Arrow arrays from numpy arrays, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.storage.letters.forms import Mask
from penstock.storage.letters.rows import Array


def bits(valid: Mask) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def primitive(kind: Any, values: Array, valid: Mask | None = None) -> pa.Array:
    """Bytes as they are: the type may be another one of the same width."""
    buffers = [None if valid is None else bits(valid), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(values), buffers)
