"""A token bucket: how much of something may be used over time. The time is passed in."""

from __future__ import annotations


class Bucket:
    """It fills steadily up to its capacity. While `least` is in it, it grants whatever is asked for: a single request
    may be larger than the capacity. Then it is overdrawn, and grants nothing until it has filled up again."""

    __slots__ = ("_at", "_capacity", "_least", "_level", "_rate")

    def __init__(self, capacity: float, seconds: float, now: float, least: float = 1) -> None:
        """`seconds`: how long an empty bucket takes to fill."""
        self._capacity = capacity
        self._rate = capacity / seconds
        self._least = least
        self._level = capacity
        self._at = now

    def take(self, amount: float, now: float) -> None:
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate) - amount
        self._at = now

    def wait(self, now: float) -> float:
        """After how many seconds it grants something. 0: now."""
        missing = self._least - self._level
        if missing <= 0:
            return 0.0
        seconds = missing / self._rate - (now - self._at)
        return seconds if seconds > _SECONDS_MIN else 0.0

    def is_full(self, now: float) -> bool:
        return self._level + (now - self._at) * self._rate >= self._capacity


_SECONDS_MIN = 1e-6  # Numbers are not exact.
