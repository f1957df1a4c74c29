"""The only reader of time."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock.model.values import Nanos

SLOWNESS = 10  # A correction takes so many times as long as it is large.
_NOISE_NS = 1_000_000  # The two clocks are not read at the same moment.


class Clock:
    """Wall time that never jumps and never goes back: carried on by the monotonic clock.

    When somebody sets the wall clock, `follow` notices, and this clock runs a tenth faster or slower until it is
    right again. So a lease never ends at once because NTP has set the time, and is right within a tenth meanwhile.
    """

    def __init__(
        self, wall: Callable[[], Nanos] = time.time_ns, monotonic: Callable[[], Nanos] = time.monotonic_ns
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._since = monotonic()
        self._origin = wall() - self._since
        self._error: Nanos = 0  # What is added to the time little by little, from `_since` on.

    def __call__(self) -> Nanos:
        if not self._error:
            return self._origin + self._monotonic()
        now = self._monotonic()
        return self._origin + now + self._absorbed(now)

    def follow(self) -> Nanos:
        """Look at the wall clock; how far this one is behind it, or if less than 0, ahead. Called now and then."""
        now = self._monotonic()
        self._origin += self._absorbed(now)
        self._since = now
        error = self._wall() - self._origin - now
        self._error = error if abs(error) > _NOISE_NS else 0
        return self._error

    def _absorbed(self, now: Nanos) -> Nanos:
        """As much of the error as has been made good by now."""
        most = (now - self._since) // SLOWNESS
        return max(-most, min(most, self._error))
