"""The circuit breaker of an endpoint: after several failures in a row, nothing is sent to it for a while."""

from __future__ import annotations

from typing import Literal

from penstock.backoff import backoff_ns
from penstock.model.values import Nanos

State = Literal["closed", "open", "half-open"]


class Circuit:
    """A closed circuit lets everything through. After `failures_max` failures in a row it opens, and nothing is tried
    for a while. Then it is half open for one attempt, which closes it or opens it for longer."""

    def __init__(self, failures_max: int, first_ns: Nanos, longest_ns: Nanos) -> None:
        self.state: State = "closed"
        self._failures_max = failures_max
        self._first_ns = first_ns
        self._longest_ns = longest_ns
        self._failures = 0  # In a row.
        self._openings = 0  # In a row.

    def succeed(self) -> bool:
        """Count an attempt that succeeded, however long ago it began. Returns whether this closed the circuit."""
        was_closed, self.state = self.state == "closed", "closed"
        self._failures = self._openings = 0
        return not was_closed

    def fail(self, chance: float) -> Nanos | None:
        """Count an attempt that failed. Returns for how long this opened the circuit; None if it did not."""
        self._failures += 1
        if self.state == "open" or (self.state == "closed" and self._failures < self._failures_max):
            return None
        return self.trip(chance)

    def trip(self, chance: float) -> Nanos:
        """Open the circuit now, whatever the number of failures. Returns for how long."""
        self.state = "open"
        self._openings += 1
        return backoff_ns(self._openings, self._first_ns, self._longest_ns, chance)

    def half_open(self) -> None:
        """Allow one attempt, after the circuit was open for long enough."""
        assert self.state == "open"
        self.state = "half-open"
