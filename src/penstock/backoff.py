"""How long to wait before the next attempt: one rule for everything that is tried again.

Chance is handed in: a number from 0 up to, but not including, 1.
"""

from __future__ import annotations

_DOUBLINGS_MAX = 62  # Beyond any bound.


def backoff_ns(attempt: int, first_ns: int, longest_ns: int, chance: float) -> int:
    """How long to wait after the n-th attempt in a row that failed: twice as long each time, less up to half of it by
    chance, so that those who failed together do not all come back together."""
    whole = min(first_ns << min(attempt - 1, _DOUBLINGS_MAX), longest_ns)
    return whole - int(whole * chance / 2)
