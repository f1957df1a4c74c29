"""An account of several workers. One of them owns it; the others borrow from that one, or have a fair share while it
cannot be reached. Answers that are not read are counted in each worker: it is its memory that they take."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from penstock.broker.quotas.account import RATES, Account, Bucket, Scope
from penstock.broker.quotas.lending import LentSeats, Loan, OwnSeats, Pool, slice_of
from penstock.config.quotas import QuotaLimits

COUNTS = ("connections", "waiting")


class Workers(Protocol):
    """All workers of a broker, as an account knows them."""

    count: int
    clock: Callable[[], float]

    def owner_of(self, scope: Scope, name: str) -> int | None:
        """The worker that has the account; None: this one."""

    def is_linked(self, worker: int) -> bool: ...

    def ask(self, owner: int, account: Account, quota: str, used: float, returned: float, wanted: float) -> None: ...

    def give(self, worker: int, account: Account, quota: str, amount: float, seconds: float) -> None: ...

    def keep(self, loan: Loan) -> None:
        """It may have more than it needs, and is asked to return it after a while."""


class SharedAccount(Account):
    __slots__ = ("_owner", "_seats", "_workers")

    def __init__(self, workers: Workers, scope: Scope, name: str, limits: QuotaLimits, now: float) -> None:
        self._workers = workers
        self._owner = workers.owner_of(scope, name)
        self._seats: dict[str, Any] = {quota: OwnSeats(math.inf, lambda *_: None) for quota in COUNTS}
        super().__init__(scope, name, limits, now)

    @property
    def owner(self) -> int | None:
        return self._owner

    def set_limits(self, limits: QuotaLimits, now: float) -> None:
        """Also when the owner can be reached, and when it cannot."""
        super().set_limits(limits, now)
        for quota in COUNTS:
            used = self._seats[quota].used
            seats = self._seats[quota] = self._seats_of(quota, getattr(limits, quota) or math.inf)
            seats.used = used

    @property
    def _is_alone(self) -> bool:
        return self._owner is not None and not self._workers.is_linked(self._owner)

    def _seats_of(self, quota: str, limit: float) -> OwnSeats | LentSeats:
        workers, owner = self._workers, self._owner
        if owner is None or limit == math.inf:
            return OwnSeats(limit, lambda worker, amount: workers.give(worker, self, quota, amount, 0.0))
        if self._is_alone:
            return OwnSeats(max(1, limit // workers.count), lambda *_: None)
        slice_ = slice_of(limit, workers.count)
        return LentSeats(slice_, lambda returned, wanted: workers.ask(owner, self, quota, 0.0, returned, wanted))

    def _bucket(self, quota: str, limit: float, seconds: float, now: float) -> Bucket | Loan:
        workers, owner, least = self._workers, self._owner, isinstance(limit, int)
        if owner is None:
            return Pool(limit, seconds, now, least)
        if self._is_alone:
            return Bucket(max(limit / workers.count, least), seconds, now, least)
        return Loan(slice_of(limit, workers.count), now, partial(workers.ask, owner, self, quota), least)

    # ── What is counted at once ─────────────────────────────────────────────────────────────────────────────

    @property
    def connections(self) -> int:
        used: int = self._seats["connections"].used
        return used

    @connections.setter
    def connections(self, used: int) -> None:
        self._seats["connections"].used = used

    @property
    def waiting(self) -> int:
        used: int = self._seats["waiting"].used
        return used

    @waiting.setter
    def waiting(self, used: int) -> None:
        self._seats["waiting"].used = used

    @property
    def connections_max(self) -> float:
        most: float = self._seats["connections"].most
        return most

    @connections_max.setter
    def connections_max(self, _: float) -> None:
        """The seats know."""

    @property
    def waiting_max(self) -> float:
        most: float = self._seats["waiting"].most
        return most

    @waiting_max.setter
    def waiting_max(self, _: float) -> None:
        """The seats know."""

    # ── What other workers say ──────────────────────────────────────────────────────────────────────────────

    def lend(self, worker: int, quota: str, used: float, returned: float, wanted: float) -> None:
        """In the owner: another worker has used and returned so much, and wants more."""
        if quota in COUNTS:
            self._seats[quota].lend(worker, int(returned), int(wanted))
        elif isinstance(pool := self.buckets.get(quota), Pool):
            amount, seconds = pool.lend(worker, used, returned, wanted, self._workers.clock())
            if wanted:
                self._workers.give(worker, self, quota, amount, seconds)

    def get(self, quota: str, amount: float, seconds: float) -> None:
        """In a borrower: the owner has lent so much."""
        if quota in COUNTS and isinstance(seats := self._seats[quota], LentSeats):
            seats.get(int(amount))
        elif isinstance(loan := self.buckets.get(quota), Loan):
            loan.get(amount, seconds, self._workers.clock())
            self._workers.keep(loan)

    def forget(self, worker: int) -> None:
        """A borrower has gone."""
        for part in (*self._seats.values(), *self.buckets.values()):
            if isinstance(part, OwnSeats | Pool):
                part.forget(worker)

    def is_idle(self, now: float) -> bool:
        return all(each.is_unused for each in self._seats.values()) and super().is_idle(now)

    def let_go(self) -> None:
        """Return what is borrowed: nobody will."""
        for quota in RATES:
            if isinstance(loan := self.buckets.get(quota), Loan):
                loan.tidy()
