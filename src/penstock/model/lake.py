"""What is asked of the lake."""

from __future__ import annotations

from msgspec import Struct


class MinutesQuery(Struct, frozen=True):
    """Which minutes of which queue. Times are seconds since the epoch."""

    queue: str | None  # None: the sum of all queues.
    since: float
    until: float
    step: int  # Seconds that one row sums up.
