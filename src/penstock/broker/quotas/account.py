"""What one identity or one address uses now, and the table of all of them, whose size is bounded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

from penstock.config.quotas import QuotaLimits
from penstock.limits import ACCOUNTS_MAX, ACCOUNTS_SWEPT_MIN, FAULTS_PER_SECOND_MAX

Scope = Literal["identity", "address"]

_SECONDS = {"_per_second": 1.0, "_per_minute": 60.0}
RATES: dict[str, float] = {
    name: seconds for name in QuotaLimits.__struct_fields__ for end, seconds in _SECONDS.items() if name.endswith(end)
}
"""The quotas over time, and how long each takes to fill."""


class Account:
    __slots__ = (
        "buckets",
        "connections",
        "connections_max",
        "limits",
        "name",
        "scope",
        "unread_bytes",
        "waiting",
        "waiting_max",
    )

    connections_max: float
    waiting_max: float

    def __init__(self, scope: Scope, name: str, limits: QuotaLimits, now: float) -> None:
        self.scope: Scope = scope
        self.name = name
        self.connections = 0
        self.waiting = 0  # Requests that wait for something.
        self.unread_bytes = 0
        self.set_limits(limits, now)

    def set_limits(self, limits: QuotaLimits, now: float) -> None:
        self.limits = limits
        self.connections_max = limits.connections or math.inf
        self.waiting_max = limits.waiting or math.inf
        self.buckets: dict[str, Any] = {
            name: self._bucket(name, limit, seconds, now)
            for name, seconds in RATES.items()
            if (limit := getattr(limits, name))
        }
        self.buckets["faults"] = Bucket(FAULTS_PER_SECOND_MAX, 1.0, now)  # It has no setting.

    def _bucket(self, _: str, limit: float, seconds: float, now: float) -> Any:
        """Of one quota over time: a `Bucket`, or something that works as one."""
        return Bucket(limit, seconds, now, least=isinstance(limit, int))

    def is_idle(self, now: float) -> bool:
        """Whether a new account would be the same."""
        if self.connections or self.waiting or self.unread_bytes:
            return False
        return all(bucket.is_full(now) for bucket in self.buckets.values())

    def let_go(self) -> None:
        """It is forgotten."""


MakeAccount = Callable[[Scope, str, QuotaLimits, float], Account]


class Accounts:
    """The accounts of one scope by name. Those that are idle are forgotten when there are many."""

    def __init__(self, scope: Scope, clock: Callable[[], float], most: int = ACCOUNTS_MAX) -> None:
        self._scope: Scope = scope
        self._clock = clock
        self._most = most
        self.make: MakeAccount = Account
        self._accounts: dict[str, Account] = {}
        self._sweep_at = ACCOUNTS_SWEPT_MIN

    def __len__(self) -> int:
        return len(self._accounts)

    def __iter__(self) -> Iterator[Account]:
        return iter(self._accounts.values())

    def find(self, name: str) -> Account | None:
        return self._accounts.get(name)

    def of(self, name: str, limits: QuotaLimits) -> Account:
        """The account of this name, with these limits from now on."""
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= min(self._sweep_at, self._most):
                self._make_room()
            account = self._accounts[name] = self.make(self._scope, name, limits, self._clock())
        elif account.limits is not limits and account.limits != limits:
            account.set_limits(limits, self._clock())
        return account

    def _make_room(self) -> None:
        now = self._clock()
        self._accounts = {name: each for name, each in self._accounts.items() if not each.is_idle(now)}
        unused = [name for name, each in self._accounts.items() if not each.connections]  # The oldest come first.
        for name in unused[: max(0, len(self._accounts) - self._most // 2)]:
            self._accounts.pop(name).let_go()
        self._sweep_at = max(ACCOUNTS_SWEPT_MIN, 2 * len(self._accounts))


class Bucket:
    """It fills steadily up to its capacity. While `least` is in it, it grants whatever is asked for: a single request
    may be larger than the capacity. Then it is overdrawn, and grants nothing until it has filled up again."""

    __slots__ = ("_at", "_capacity", "_least", "_level", "_rate")

    def __init__(self, capacity: float, seconds: float, now: float, least: float = 1) -> None:
        """`seconds`: how long an empty bucket takes to fill."""
        self._capacity = capacity
        self._rate = capacity / seconds
        self._least = least
        self._level = capacity
        self._at = now

    def take(self, amount: float, now: float) -> None:
        self._level = min(self._capacity, self._level + (now - self._at) * self._rate) - amount
        self._at = now

    def wait(self, now: float) -> float:
        """After how many seconds it grants something. 0: now."""
        missing = self._least - self._level
        if missing <= 0:
            return 0.0
        seconds = missing / self._rate - (now - self._at)
        return seconds if seconds > _SECONDS_MIN else 0.0

    def is_full(self, now: float) -> bool:
        return self._level + (now - self._at) * self._rate >= self._capacity


_SECONDS_MIN = 1e-6  # Numbers are not exact.
