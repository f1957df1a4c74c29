"""Waiting for what no event announces."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

SECONDS_MAX = 60.0
_PAUSE_SECONDS = 0.01  # Whoever is waited for needs the processor more.

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found | None],
    what: str,
    seconds_max: float = SECONDS_MAX,
    pause_seconds: float = _PAUSE_SECONDS,
) -> Found:
    """Look until something holds; what was found."""
    deadline = time.monotonic() + seconds_max
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not in {seconds_max} s: {what}"
        time.sleep(pause_seconds)
    return found
