"""A token bucket: how much of something may be used over time. The time is passed in."""

from __future__ import annotations


class Bucket:
    """It fills steadily up to its capacity. While there is anything in it, it grants whatever is asked for: a single
    request may be larger than the capacity. Then it is overdrawn, and grants nothing until it has filled up again."""

    __slots__ = ("_at", "_capacity", "_level", "_rate")

    def __init__(self, capacity: float, seconds: float, now: float) -> None:
        """`seconds`: how long an empty bucket takes to fill."""
        self._capacity = capacity
        self._rate = capacity / seconds
        self._level = capacity
        self._at = now

    def take(self, amount: float, now: float) -> None:
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate) - amount
        self._at = now

    def wait(self, now: float) -> float:
        """After how many seconds it grants something. 0: now."""
        if self._level > 0:
            return 0.0
        level = self._level + (now - self._at) * self._rate
        return 0.0 if level > 0 else max(-level / self._rate, _SOON_SECONDS)

    def is_full(self, now: float) -> bool:
        return self._level + (now - self._at) * self._rate >= self._capacity


_SOON_SECONDS = 0.001  # An empty bucket that is not overdrawn grants something in no time at all.
