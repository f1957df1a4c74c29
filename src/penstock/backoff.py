"""How long to wait before the next attempt: one rule for everything that is tried again.

Chance is handed in: a number from 0 up to, but not including, 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

Growth = Literal["fixed", "linear", "exponential"]

_DOUBLINGS_MAX = 62  # Beyond any bound.
_GROW: dict[Growth, Callable[[int, int], int]] = {
    "fixed": lambda _, first: first,
    "linear": lambda attempt, first: first * attempt,
    "exponential": lambda attempt, first: first << min(attempt - 1, _DOUBLINGS_MAX),
}


def backoff_ns(
    attempt: int, first_ns: int, longest_ns: int, chance: float, growth: Growth = "exponential", jitter: float = 0.5
) -> int:
    """How long to wait after the n-th attempt in a row that failed. Up to a share of it, the jitter, is taken off by
    chance, so that those who failed together do not all come back together."""
    whole = min(_GROW[growth](attempt, first_ns), longest_ns)
    return whole - int(whole * chance * jitter)
