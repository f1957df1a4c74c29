"""A quota that several workers share: one of them owns it, and the others borrow slices of it in advance.

A borrower begins with a slice that it has not asked for, so that nobody waits for an answer. When it has less than a
slice left, it asks for more, and reports what it has used. So all workers together may use a slice each more than the
quota, for a moment: what was used too much is taken from what is lent later. Nothing here knows how they talk.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.broker.quotas.account import Bucket
from penstock.limits import QUOTA_SLICES

_SOON_SECONDS = 0.01  # An answer of the owner is expected within this time.


def slice_of(limit: float, workers: int) -> float:
    """What a borrower may use before it has asked. All borrowers together: an eighth of the quota."""
    return limit / (QUOTA_SLICES * (workers - 1))


# ── Over time ─────────────────────────────────────────────────────────────────────────────────────────────────


class Pool(Bucket):
    """The bucket of the owner. What is lent and not used is missing from its capacity, so that it is not there twice
    at once."""

    __slots__ = ("_is_wanted", "_lent", "_whole")

    def __init__(self, capacity: float, seconds: float, now: float, least: float = 1) -> None:
        super().__init__(capacity, seconds, now, least)
        self._whole = capacity
        self._is_wanted = False  # A client of the owner itself had to wait since something was lent.
        self._lent: dict[int, float] = {}  # By worker: what it has not used, as far as it has reported.

    def wait(self, now: float) -> float:
        seconds = super().wait(now)
        if seconds:
            self._is_wanted = True
        return seconds

    def lend(self, worker: int, used: float, returned: float, wanted: float, now: float) -> tuple[float, float]:
        """How much a borrower gets, and in how many seconds. It has used and returned this much since it last asked.
        What is not there yet is promised to it, and it gets it later if the owner needs as much."""
        self.take(-returned, now)
        lent = self._lent.get(worker, 0.0) - used - returned
        amount = max(wanted, self._level / 2) if wanted else 0.0
        self._level -= amount
        self._lent[worker] = lent + amount
        self._bound()
        after, self._is_wanted = amount if self._is_wanted else 0.0, False
        return amount, max(0.0, (after - self._level) / self._rate) if self._level < 0 else 0.0

    def forget(self, worker: int) -> None:
        """The worker has ended, or owes nothing any more."""
        self._lent.pop(worker, None)
        self._bound()

    def _bound(self) -> None:
        self._capacity = max(self._least, self._whole - sum([max(0.0, each) for each in self._lent.values()]))

    def is_full(self, now: float) -> bool:
        return super().is_full(now) and self._capacity == self._whole


class Loan:
    """The bucket of a borrower."""

    __slots__ = ("_ask", "_coming", "_coming_at", "_is_asked", "_least", "_level", "_slice", "_used", "used_at")

    def __init__(
        self, slice_: float, now: float, ask: Callable[[float, float, float], None], least: float = 1
    ) -> None:
        """`ask`: report what was used and returned, and ask for this much more, if not 0."""
        self._slice = max(slice_, least)
        self._least = least
        self._level = self._slice
        self._used = 0.0  # Not reported.
        self._ask = ask
        self._is_asked = False
        self._coming = 0.0  # It is lent from a time on.
        self._coming_at = now
        self.used_at = now

    def take(self, amount: float, now: float) -> None:
        self._level -= amount
        self._used += amount
        self.used_at = now
        self._go_on(now)

    def wait(self, now: float) -> float:
        """After how many seconds it grants something. 0: now."""
        self._go_on(now)
        return 0.0 if self._level >= self._least else max(self._coming_at - now, _SOON_SECONDS)

    def _go_on(self, now: float) -> None:
        if self._coming and now >= self._coming_at:
            self._level += self._coming
            self._coming = 0.0
            self._is_asked = False
        if self._level < self._slice and not self._is_asked:
            self._is_asked = True
            used, self._used = self._used, 0.0
            self._ask(used, 0.0, self._slice + max(0.0, -self._level))

    def get(self, amount: float, seconds: float, now: float) -> None:
        """The owner has lent this much, from a time on."""
        self._coming, self._coming_at = amount, now + seconds
        self._go_on(now)

    def tidy(self) -> None:
        """Return what is not needed now."""
        spare = self._level - self._slice
        if spare > 0 and not self._is_asked:
            used, self._used = self._used, 0.0
            self._level = self._slice
            self._ask(used, spare, 0.0)

    def is_full(self, _: float) -> bool:
        return self._level == self._slice and not self._is_asked


# ── At once ───────────────────────────────────────────────────────────────────────────────────────────────────


class OwnSeats:
    """How many of something there may be at once, in the worker that owns the count."""

    __slots__ = ("_give", "_lent", "_limit", "_used", "_wanting")

    def __init__(self, limit: float, give: Callable[[int, int], None]) -> None:
        """`give`: lend so many to a worker that could not have them when it asked."""
        self._limit = limit
        self._used = 0
        self._give = give
        self._lent: dict[int, int] = {}
        self._wanting: dict[int, int] = {}  # By worker: how many it still wants. The first has waited longest.

    @property
    def most(self) -> float:
        return self._limit - sum(self._lent.values())

    @property
    def used(self) -> int:
        return self._used

    @used.setter
    def used(self, used: int) -> None:
        is_less, self._used = used < self._used, used
        if is_less:
            self._satisfy()

    def lend(self, worker: int, returned: int, wanted: int) -> None:
        """Who returns some wants none any more."""
        self._lent[worker] = max(0, self._lent.get(worker, 0) - returned)
        self._wanting.pop(worker, None)
        if wanted:
            self._wanting[worker] = wanted
        self._satisfy()

    def forget(self, worker: int) -> None:
        self._lent.pop(worker, None)
        self._wanting.pop(worker, None)
        self._satisfy()

    def _satisfy(self) -> None:
        while self._wanting and (free := self.most - self._used) >= 1:
            worker = next(iter(self._wanting))
            amount = int(min(free, self._wanting.pop(worker)))
            self._lent[worker] = self._lent.get(worker, 0) + amount
            self._give(worker, amount)

    @property
    def is_unused(self) -> bool:
        return not self._used and not any(self._lent.values()) and not self._wanting


class LentSeats:
    """How many there may be in a worker that borrows."""

    __slots__ = ("_ask", "_is_asked", "_slice", "_used", "most")

    def __init__(self, slice_: float, ask: Callable[[int, int], None]) -> None:
        """`ask`: return so many, and ask for more, if not 0."""
        self._slice = max(1, int(slice_)) if slice_ < math.inf else 0
        self._used = 0
        self._ask = ask
        self._is_asked = False
        self.most: float = slice_ if slice_ == math.inf else self._slice

    @property
    def used(self) -> int:
        return self._used

    @used.setter
    def used(self, used: int) -> None:
        self._used = used
        self._check()

    def get(self, amount: int) -> None:
        self.most += amount
        self._is_asked = False
        self._check()

    def _check(self) -> None:
        """Have a slice in reserve, and some more if many are used."""
        if not self._slice:
            return
        free, wanted = int(self.most) - self._used, max(self._slice, self._used // 2)
        if free < self._slice and not self._is_asked:
            self._is_asked = True
            self._ask(0, wanted)
        elif free > self._slice + wanted:
            self.most -= free - self._slice
            self._is_asked = False
            self._ask(free - self._slice, 0)

    @property
    def is_unused(self) -> bool:
        return not self._used and (not self._slice or self.most == self._slice) and not self._is_asked
