"""When to try again: the back-off of a message, and the circuit that keeps a dead endpoint from being tried at all.

Chance is handed in: a number from 0 up to, and without, 1.
"""

from __future__ import annotations

from typing import Literal

from penstock.model.values import Nanos

State = Literal["closed", "open", "half-open"]

_DOUBLINGS_MAX = 62  # Beyond any bound.


def backoff_ns(attempt: int, first_ns: Nanos, longest_ns: Nanos, chance: float) -> Nanos:
    """How long to wait after the n-th attempt in a row that failed: twice as long each time, and by chance up to half
    of it less, so that those who failed together do not all come back together."""
    whole = min(first_ns << min(attempt - 1, _DOUBLINGS_MAX), longest_ns)
    return whole - int(whole * chance / 2)


class Circuit:
    """Closed, it lets everything through. After so many failures in a row it opens, and nothing is tried for a while;
    then it is half open, for one attempt, which closes it or opens it for longer."""

    def __init__(self, failures_max: int, first_ns: Nanos, longest_ns: Nanos) -> None:
        self.state: State = "closed"
        self._failures_max = failures_max
        self._first_ns = first_ns
        self._longest_ns = longest_ns
        self._failures = 0  # In a row.
        self._openings = 0  # The same.

    def succeed(self) -> bool:
        """Something came through, be it something that was on its way for long. Whether this has closed it."""
        was_closed, self.state = self.state == "closed", "closed"
        self._failures = self._openings = 0
        return not was_closed

    def fail(self, chance: float) -> Nanos | None:
        """Something did not come through: if this has opened it, for how long. While it is open, that is no news."""
        self._failures += 1
        if self.state == "open" or (self.state == "closed" and self._failures < self._failures_max):
            return None
        return self.trip(chance)

    def trip(self, chance: float) -> Nanos:
        """Open it, however few failures there were; for how long."""
        self.state = "open"
        self._openings += 1
        return backoff_ns(self._openings, self._first_ns, self._longest_ns, chance)

    def half_open(self) -> None:
        """The time for which it was open is over."""
        assert self.state == "open"
        self.state = "half-open"
