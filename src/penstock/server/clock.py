"""The only reader of time."""

from __future__ import annotations

import time

from penstock.model import Nanos


class Clock:
    """Wall time that never jumps: read once, then carried on by the monotonic clock."""

    def __init__(self) -> None:
        self._origin = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> Nanos:
        return self._origin + time.monotonic_ns()
