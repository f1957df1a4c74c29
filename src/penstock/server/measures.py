"""What the parts of a broker report for its metrics: the shells, the writer and the services."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

Samples = list[tuple[tuple[str, ...], float]]  # The values of a metric, each with its labels.


class Measured(Protocol):
    def state(self) -> Iterable[tuple[str, Samples]]:
        """What the part is doing, as metrics: their names and their values."""


def one(value: float) -> Samples:
    """The samples of a metric without labels."""
    return [((), value)]
