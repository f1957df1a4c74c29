"""Failed logins: how many there were, and how long the next refusal of the same address waits.

A refusal that waits costs a guesser time, and holds nobody else up: a client of the same address with a valid token
is not delayed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from penstock.limits import (
    LOGIN_ADDRESSES_MAX,
    LOGIN_FAILURES_PER_DOUBLING,
    LOGIN_FORGET_SECONDS,
    LOGIN_SECONDS_MAX,
    LOGINS_HELD_MAX,
    OFFENDERS_LOG_SECONDS,
    REFUSED_LOGIN_SECONDS,
)

logger = logging.getLogger(__name__)


class Logins:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.failed_total = 0
        self.held = 0  # Refusals that wait.
        self._clock = clock
        self._failures: dict[str, tuple[int, float]] = {}  # By address: how many, and when the last one was.
        self._logged_at = -OFFENDERS_LOG_SECONDS

    def failed(self, address: str) -> float:
        """Count a failure; returns how many seconds its refusal waits."""
        now = self._clock()
        count, last = self._failures.pop(address, (0, now))  # The one that failed last is the last of them.
        count = 1 if now - last > LOGIN_FORGET_SECONDS else count + 1
        if len(self._failures) >= LOGIN_ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = (count, now)
        self.failed_total += 1
        if now - self._logged_at >= OFFENDERS_LOG_SECONDS:
            self._logged_at = now
            facts = {"address": address, "failures": count, "failed_total": self.failed_total}
            logger.warning("login_failed", extra=facts)
        doublings = min((count - 1) // LOGIN_FAILURES_PER_DOUBLING, _DOUBLINGS_MAX)
        return min(REFUSED_LOGIN_SECONDS * (1 << doublings), LOGIN_SECONDS_MAX)

    def hold(self, seconds: float, refuse: Callable[[], None]) -> bool:
        """Refuse after this time. False: too many wait already."""
        if self.held >= LOGINS_HELD_MAX:
            return False
        self.held += 1
        asyncio.get_running_loop().call_later(seconds, self._release, refuse)
        return True

    def _release(self, refuse: Callable[[], None]) -> None:
        self.held -= 1
        refuse()


_DOUBLINGS_MAX = 32  # Beyond any bound.
