"""The use of each address and identity is known, in a table that cannot grow without bound."""

from __future__ import annotations

from penstock.broker.quotas.account import RATES, Account, Accounts
from penstock.config.quotas import QuotaLimits
from penstock.limits import ACCOUNTS_SWEPT_MIN

MOST = 4 * ACCOUNTS_SWEPT_MIN


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_quota_without_a_limit_takes_no_bucket() -> None:
    assert Account("address", "a", QuotaLimits(), 0).buckets.keys() == {"faults"}
    limited = Account("address", "a", QuotaLimits(published_per_second=5, search_seconds_per_minute=0.5), 0)
    assert limited.buckets.keys() == {"published_per_second", "search_seconds_per_minute", "faults"}
    assert RATES["published_per_second"] == 1
    assert RATES["search_seconds_per_minute"] == 60


def test_idle_accounts_are_forgotten_and_those_with_connections_or_debts_are_not() -> None:
    clock = Clock()
    accounts = Accounts("address", clock)
    limits = QuotaLimits(published_per_second=10)
    accounts.of("connected", limits).connections += 1
    accounts.of("in debt", limits).buckets["published_per_second"].take(1000, 0)
    kept = [accounts.of("connected", limits), accounts.of("in debt", limits)]
    for number in range(10 * ACCOUNTS_SWEPT_MIN):
        accounts.of(f"idle {number}", limits)
    assert len(accounts) <= ACCOUNTS_SWEPT_MIN
    assert [accounts.of("connected", limits), accounts.of("in debt", limits)] == kept


def test_the_table_is_bounded_even_if_every_account_is_in_debt() -> None:
    accounts = Accounts("address", Clock(), MOST)
    limits = QuotaLimits(published_per_second=10)
    connected = accounts.of("connected", limits)
    connected.connections += 1
    for number in range(5 * MOST):
        accounts.of(str(number), limits).buckets["published_per_second"].take(1000, 0)
    assert len(accounts) <= MOST
    assert accounts.of("connected", limits) is connected


def test_new_limits_hold_at_once_and_the_connections_are_still_counted() -> None:
    accounts = Accounts("identity", Clock())
    account = accounts.of("worker", QuotaLimits(published_per_second=1))
    account.connections += 3
    account.buckets["published_per_second"].take(100, 0)
    assert accounts.of("worker", QuotaLimits(published_per_second=1)).buckets["published_per_second"].wait(0)
    changed = accounts.of("worker", QuotaLimits(published_per_second=50))
    assert changed is account
    assert changed.connections == 3
    assert not changed.buckets["published_per_second"].wait(0)
