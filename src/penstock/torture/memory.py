"""How much memory the broker needs over time, in few numbers however long the run is."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

MINUTE_SECONDS = 60.0
WARM_UP_SHARE = 0.2
FLAT_SHARE = 0.1
MINUTES_MIN = 5  # After the warm-up; fewer prove nothing.


class Flatness(NamedTuple):
    """The broker's memory after the warm-up: the middle, and the farthest minute from it as a share."""

    broker_bytes: int
    farthest: float
    is_flat: bool


class Memory:
    """One figure a minute: the median of the samples in it."""

    def __init__(self) -> None:
        self.minutes: list[int] = []
        self.driver_bytes = 0
        self._minute = 0
        self._samples: list[int] = []

    def sample(self, now: float, broker_bytes: int, driver_bytes: int) -> None:
        self.driver_bytes = driver_bytes
        if int(now // MINUTE_SECONDS) != self._minute:
            self._end_minute(int(now // MINUTE_SECONDS))
        if broker_bytes:
            self._samples.append(broker_bytes)

    def _end_minute(self, minute: int) -> None:
        if self._samples:
            self.minutes.append(int(median(self._samples)))
        self._minute, self._samples = minute, []

    @property
    def newest_bytes(self) -> int:
        return self._samples[-1] if self._samples else 0

    def flatness(self) -> Flatness | None:
        """None if the run was too short to know."""
        warm = self.minutes[max(1, int(len(self.minutes) * WARM_UP_SHARE)) :]
        if len(warm) < MINUTES_MIN:
            return None
        middle = median(warm)
        farthest = max((each / middle - 1 for each in warm), key=abs)
        return Flatness(int(middle), round(farthest, 4), abs(farthest) <= FLAT_SHARE)
