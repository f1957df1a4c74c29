"""Another process of the broker, as this one knows it without asking: so nobody waits for one that hangs."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf
from typing import NamedTuple

from penstock.limits import AWAY_SECONDS, LATE_SECONDS


class Fellow(NamedTuple):
    name: str  # worker 1
    number: int
    silence: float  # Seconds; infinite if it has ended.
    is_linked: bool
    is_this: bool = False

    @property
    def is_late(self) -> bool:
        """Whether it is better not to wait for its answers."""
        return self.is_away or self.silence > LATE_SECONDS

    @property
    def is_away(self) -> bool:
        """Whether its shards cannot be reached."""
        return not self.is_this and (not self.is_linked or self.silence > AWAY_SECONDS)

    @property
    def state(self) -> str:
        """In words, if it is late."""
        if isinf(self.silence):
            return f"{self.name} has ended and is started again"
        if self.silence > LATE_SECONDS:
            return f"{self.name} has been silent for {self.silence:.1f} s"
        return f"{self.name} is not linked" if self.is_away else f"{self.name} answers slowly"


FellowOf = Callable[[int], Fellow | None]
"""The process that has a shard; None where nobody knows more of it than its answers."""


def unknown(_: int) -> Fellow | None:
    return None
