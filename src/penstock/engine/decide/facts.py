"""The fields that every event about one message begins with."""

from __future__ import annotations

from penstock.engine.queue import Queue
from penstock.engine.rows import Row
from penstock.model.values import Nanos

Facts = tuple[Nanos, int, int, Nanos, int, int]


def facts_of(queue: Queue, sequence: int, row: Row, now: Nanos) -> Facts:
    return now, queue.number, sequence, row.created, row.receives, row.consumer
