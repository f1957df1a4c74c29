"""Quotas are those of the broker, not of a worker: each account has one worker that owns it, by the hash of its name.

The others borrow from it over their links (`quotas/lending.py`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from hashlib import blake2b

from penstock.broker.quotas.account import Account, Scope
from penstock.broker.quotas.lending import Loan
from penstock.broker.quotas.quotas import Quotas
from penstock.broker.quotas.shared_account import SharedAccount
from penstock.cluster.links.codec import Borrow, Lend
from penstock.cluster.links.link import Link
from penstock.cluster.links.mesh import Mesh
from penstock.limits import QUOTA_TIDY_SECONDS


def owner_of_account(scope: Scope, name: str, workers: int) -> int:
    return int.from_bytes(blake2b(f"{scope} {name}".encode(), digest_size=8).digest()) % workers


class SharedQuotas:
    """All workers, as the accounts of this one know them."""

    def __init__(self, quotas: Quotas, mesh: Mesh, worker: int, workers: int) -> None:
        self.count = workers
        self.clock = quotas.clock
        self._worker = worker
        self._mesh = mesh
        self._accounts = quotas.shared(partial(SharedAccount, self))
        self._rich: set[Loan] = set()  # They may have more than they need.
        self._tidying: asyncio.TimerHandle | None = None
        mesh.acts[Borrow] = self._borrow
        mesh.acts[Lend] = self._lend
        mesh.when_linked.append(self._linked)
        mesh.when_lost.append(self._lost)

    def owner_of(self, scope: Scope, name: str) -> int | None:
        owner = owner_of_account(scope, name, self.count)
        return None if owner == self._worker else owner

    # ── In a borrower ───────────────────────────────────────────────────────────────────────────────────────

    def is_linked(self, worker: int) -> bool:
        return worker in self._mesh.links

    def ask(self, owner: int, account: Account, quota: str, used: float, returned: float, wanted: float) -> None:
        if link := self._mesh.links.get(owner):
            link.send(Borrow(account.scope, account.name, account.limits, quota, used, returned, wanted))

    def _lend(self, _: Link, entry: Lend) -> None:
        account = self._accounts[entry.scope].find(entry.name)
        if isinstance(account, SharedAccount):  # Else it was forgotten.
            account.get(entry.quota, entry.amount, entry.seconds)

    def keep(self, loan: Loan) -> None:
        self._rich.add(loan)
        if self._tidying is None:
            self._tidying = asyncio.get_running_loop().call_later(QUOTA_TIDY_SECONDS, self._tidy)

    def _tidy(self) -> None:
        before = self.clock() - QUOTA_TIDY_SECONDS
        for loan in [each for each in self._rich if each.used_at <= before]:
            loan.tidy()
            self._rich.discard(loan)
        self._tidying = None
        if self._rich:
            self._tidying = asyncio.get_running_loop().call_later(QUOTA_TIDY_SECONDS, self._tidy)

    # ── In the owner ────────────────────────────────────────────────────────────────────────────────────────

    def _borrow(self, link: Link, entry: Borrow) -> None:
        account = self._accounts[entry.scope].of(entry.name, entry.limits)
        assert isinstance(account, SharedAccount)
        assert link.peer is not None
        account.lend(link.peer, entry.quota, entry.used, entry.returned, entry.wanted)

    def give(self, worker: int, account: Account, quota: str, amount: float, seconds: float) -> None:
        if link := self._mesh.links.get(worker):
            link.send(Lend(account.scope, account.name, quota, amount, seconds))

    # ── Links ───────────────────────────────────────────────────────────────────────────────────────────────

    def _linked(self, link: Link) -> None:
        self._begin_anew(link.peer)

    def _lost(self, link: Link) -> None:
        """What it owned, everyone has a fair share of; what it has borrowed is here again."""
        self._begin_anew(link.peer)
        for account in self._all():
            if account.owner is None and link.peer is not None:
                account.forget(link.peer)

    def _begin_anew(self, owner: int | None) -> None:
        for account in self._all():
            if account.owner is not None and account.owner == owner:
                account.set_limits(account.limits, self.clock())

    def _all(self) -> list[SharedAccount]:
        return [each for every in self._accounts.values() for each in every if isinstance(each, SharedAccount)]
