"""The figures of the last hour, one sample every ten seconds, of the queues that were busy last."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.model.figures import Figures

SAMPLE_SECONDS = 10
SAMPLES = 360
MINUTE, FIVE_MINUTES = 6, 30  # In samples.
_BEFORE_MIN = 12  # So many samples before the last minute tell how a queue did before.
QUEUES_MAX = 1000
"""Each takes 9 KiB. If there are more, the queue that was idle longest is forgotten first."""

FIELDS = ("ready", "in", "out", "delivered", "retried", "failed")
_ATTRIBUTES = ("ready", "entered", "left", "delivered", "retried", "failed")
_IN, _OUT = FIELDS.index("in"), FIELDS.index("out")


class Trend(NamedTuple):
    """How a queue is doing, and how it did before. Rates are messages a second; None if they are not known."""

    ready_before: float | None  # Five minutes ago.
    entered: float | None  # In the last minute.
    left: float | None
    entered_before: float | None  # In the five minutes before that; None if the queue is younger than some minutes.
    left_before: float | None


class Hour:
    """Rings of samples: one for each queue, all with the same times."""

    def __init__(self) -> None:
        self._times: NDArray[np.float64] = np.full(SAMPLES, np.nan)
        self._rings: dict[str, NDArray[np.float32]] = {}  # The queue that was idle longest comes first.
        self._at = 0
        self._samples = 0  # How many there are.

    def add(self, now: float, all_figures: list[Figures]) -> None:
        """A sample of all queues. `now`: seconds since the epoch."""
        self._at = (self._at + 1) % SAMPLES
        self._samples = min(self._samples + 1, SAMPLES)
        self._times[self._at] = now
        for each in self._rings.values():
            each[:, self._at] = np.nan
        for figures in all_figures:
            if figures.entered or figures.left or figures.ready:
                self._refresh(figures.name)
            if (ring := self._rings.get(figures.name)) is not None:
                ring[:, self._at] = [_or_gap(getattr(figures, name)) for name in _ATTRIBUTES]

    def _refresh(self, name: str) -> None:
        """The queue is busy: it is the last to be forgotten."""
        known = self._rings.pop(name, None)
        self._rings[name] = np.full((len(FIELDS), SAMPLES), np.nan, np.float32) if known is None else known
        if len(self._rings) > QUEUES_MAX:
            del self._rings[next(iter(self._rings))]

    def keep(self, names: set[str]) -> None:
        """Forget all other queues."""
        self._rings = {name: ring for name, ring in self._rings.items() if name in names}

    def times(self) -> list[float]:
        return [round(time, 1) for time in self._in_order(self._times).tolist() if time == time]

    def of(self, name: str) -> dict[str, list[float | None]] | None:
        """One value for each of `times`; None is a gap."""
        ring = self._rings.get(name)
        return None if ring is None else self._written(ring)

    def ready_ago(self, name: str, samples: int) -> float | None:
        """How many messages of a queue were ready so many samples ago, or in the first sample if there were not so
        many; None if that is not known. A queue that had no sample then was empty."""
        ago = min(samples, self._samples - 1)
        ring = self._rings.get(name)
        if ago < 0 or (ring is None and len(self._rings) >= QUEUES_MAX):
            return None
        before = np.nan if ring is None else float(ring[0, self._at - ago])
        return 0.0 if before != before else before

    def trend(self, name: str) -> Trend:
        recent, before = min(MINUTE, self._samples), min(FIVE_MINUTES, self._samples - MINUTE)
        rates = [self._mean(name, row, 0, recent) for row in (_IN, _OUT)]
        rates += [self._mean_before(name, row, before) for row in (_IN, _OUT)]
        return Trend(self.ready_ago(name, FIVE_MINUTES), *rates)

    def has_left(self, name: str) -> bool:
        """Whether a message left a queue in the last minute."""
        ring = self._rings.get(name)
        return ring is not None and bool((ring[_OUT, self._last(0, min(MINUTE, self._samples))] > 0).any())

    def _mean_before(self, name: str, row: int, samples: int) -> float | None:
        ring = self._rings.get(name)
        if ring is None or samples <= 0:
            return None
        found = ring[row, self._last(MINUTE, samples)]
        known = found[~np.isnan(found)]
        return float(known.mean()) if len(known) >= _BEFORE_MIN else None

    def _last(self, ago: int, samples: int) -> list[int]:
        return [(self._at - ago - each) % SAMPLES for each in range(samples)]

    def _mean(self, name: str, row: int, ago: int, samples: int) -> float | None:
        """The mean of so many samples; None if there are none. A queue that had no sample then was idle."""
        if samples <= 0:
            return None
        ring = self._rings.get(name)
        if ring is None:
            return 0.0
        return float(np.nan_to_num(ring[row, self._last(ago, samples)]).mean())

    def of_all(self, names: set[str], awaiting: set[str]) -> dict[str, list[float | None]]:
        """The sums over these queues; `ready` over those of them that wait for consumers."""
        rings = {name: ring for name, ring in self._rings.items() if name in names}
        if not rings:
            return {field: [0 for _ in self.times()] for field in FIELDS}
        whole = np.zeros((len(FIELDS), SAMPLES))
        counted = np.zeros((len(FIELDS), SAMPLES), bool)
        for name, ring in rings.items():
            first = 0 if name in awaiting else 1
            whole[first:] += np.nan_to_num(ring[first:])
            counted |= ~np.isnan(ring)
        whole[~counted] = np.nan
        return self._written(whole)

    def _written(self, ring: NDArray[Any]) -> dict[str, list[float | None]]:
        known = self._in_order(self._times) == self._in_order(self._times)
        return {
            field: [None if value != value else round(value, 2) for value in self._in_order(row)[known].tolist()]
            for field, row in zip(FIELDS, ring, strict=True)
        }

    def _in_order(self, ring: NDArray[Any]) -> NDArray[Any]:
        return np.roll(ring, -self._at - 1)


def _or_gap(value: float | None) -> float:
    return np.nan if value is None else value
