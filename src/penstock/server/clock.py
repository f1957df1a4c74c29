"""The broker's clock: the only place where it reads the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy

from penstock.limits import CLOCK_SLOWNESS
from penstock.model.values import Nanos

_NOISE_NS = 1_000_000  # The two clocks are not read at the same moment.


class Clock:
    """Wall time that never jumps and never goes back, because it advances with the monotonic clock.

    When the system clock is set, `follow` notices, and this clock runs a tenth faster or slower until both agree. So
    no lease ends early because NTP has set the time, and durations are right within a tenth meanwhile.
    """

    def __init__(
        self, wall: Callable[[], Nanos] = time.time_ns, monotonic: Callable[[], Nanos] = time.monotonic_ns
    ) -> None:
        self.wall = wall  # What the machine shows, which may jump.
        self._monotonic = monotonic
        self._since = monotonic()
        self._origin = wall() - self._since
        self._error: Nanos = 0  # Added to the time little by little, from `_since` on.

    def __call__(self) -> Nanos:
        if not self._error:
            return self._origin + self._monotonic()
        now = self._monotonic()
        return self._origin + now + self._absorbed(now)

    def another(self) -> Clock:
        """One that shows the same now, and then goes its own way."""
        return copy(self)

    def go_on_after(self, time: Nanos) -> Nanos:
        """Be past this time at once: nothing may happen before what has happened. How far this clock is ahead of the
        wall clock then, which it lets come closer."""
        self._origin += max(0, time - self())
        return max(0, -self.follow())

    def follow(self) -> Nanos:
        """Compare with the wall clock: how far this clock lags behind it (below 0: is ahead). Called periodically."""
        now = self._monotonic()
        self._origin += self._absorbed(now)
        self._since = now
        error = self.wall() - self._origin - now
        self._error = error if abs(error) > _NOISE_NS else 0
        return self._error

    def _absorbed(self, now: Nanos) -> Nanos:
        """The part of the error that is corrected by now."""
        most = (now - self._since) // CLOCK_SLOWNESS
        return max(-most, min(most, self._error))
