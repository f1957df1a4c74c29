"""What the parts of a broker report for its metrics: the shells, the writer and the services."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from penstock.engine.queue import Queue
from penstock.model.metrics import Samples as Samples


class Measured(Protocol):
    def state(self) -> Iterable[tuple[str, Samples]]:
        """What the part is doing, as metrics: their names and their values."""


def needs_consumers(queue: Queue) -> bool:
    """Whether its messages wait for somebody. Those of a queue that keeps everything, and records, stay anyway."""
    return queue.settings.keep != "all" and not queue.name.startswith("_")


def one(value: float) -> Samples:
    """The samples of a metric without labels."""
    return [((), value)]
