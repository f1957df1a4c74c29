"""The leases of shards: renewed together as long as they are ours, and each lost for good when it is not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from functools import partial

import psycopg
import pytest

from penstock.errors import FencedError, StoreError
from penstock.storage.postgres import lease
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.lease import Leases
from penstock.storage.postgres.shard import Shard
from tests.support.postgres import Postgres

LEASE_SECONDS = 6.0


@pytest.fixture
def own(postgres: Postgres) -> Callable[[], Shard]:
    """Owns another shard of the store at each call."""

    def owned() -> Shard:
        url, number = postgres.new_shard()
        with closing(Connection(url)) as connection:
            shard = Shard(connection, number)
            shard.acquire("owner", "here")
        return shard

    return owned


@pytest.fixture
def leases(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Leases:
    """They are renewed at once."""
    monkeypatch.setattr(lease, "_RENEW", 0.01)
    return Leases(partial(Connection, postgres.url()), LEASE_SECONDS)


class Losses:
    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._over = threading.Event()

    def note(self, error: BaseException) -> None:
        assert self.error is None, "a lease is lost once"
        self.error = error
        self._over.set()

    def wait(self) -> BaseException:
        assert self._over.wait(60)
        assert self.error is not None
        return self.error


def run(postgres: Postgres, statement: str) -> list[tuple[object, ...]]:
    with closing(psycopg.connect(postgres.url(), autocommit=True)) as session:
        return session.execute(statement.encode()).fetchall()


def wait_for_renewals(postgres: Postgres, shard: Shard) -> None:
    seen: set[object] = set()
    while len(seen) < 4:
        seen.add(run(postgres, f"SELECT lease_until FROM penstock.shard WHERE id = {shard.number}")[0])


def test_a_lease_is_lost_when_another_owner_has_come_and_the_others_are_not(
    postgres: Postgres, own: Callable[[], Shard], leases: Leases
) -> None:
    replaced, kept = own(), own()
    losses, none = Losses(), Losses()
    run(postgres, f"UPDATE penstock.shard SET epoch = epoch + 1 WHERE id = {replaced.number} RETURNING 1")
    leases.hold(replaced, lease.now() + 3600, losses.note)
    leases.hold(kept, lease.now() + 3600, none.note)
    assert isinstance(losses.wait(), FencedError)
    wait_for_renewals(postgres, kept)
    assert none.error is None
    leases.let_go(kept.number)


def test_leases_that_cannot_be_renewed_are_lost_before_they_end_in_the_store(own: Callable[[], Shard]) -> None:
    def refuse() -> Connection:
        raise StoreError("no route")

    leases, losses = Leases(refuse, LEASE_SECONDS), [Losses(), Losses()]
    for each in losses:
        leases.hold(own(), lease.now() - LEASE_SECONDS, each.note)
    assert [str(each.wait()) for each in losses] == ["the lease could not be renewed for 4 s"] * 2


def test_a_lease_counts_from_when_its_renewal_began(
    postgres: Postgres, own: Callable[[], Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first renewal takes longer than one may serve with it, in a time of its own. There is no second one."""
    lease_seconds, began, over = 0.06, 0.0, threading.Event()
    clock = [began]
    monkeypatch.setattr(lease, "now", lambda: clock[0])

    def lag() -> None:
        """Asked for when a renewal has begun."""
        if clock[0] == began:
            clock[0] = began + 0.045
        else:
            over.wait(60)

    leases, losses = Leases(partial(Connection, postgres.url()), lease_seconds), Losses()
    leases.hold(own(), began + 0.01, losses.note, lag)
    try:
        assert str(losses.wait()) == "the lease could not be renewed for 0 s"
    finally:
        over.set()


def test_the_store_learns_how_far_a_shard_lags_behind_others(
    postgres: Postgres, own: Callable[[], Shard], leases: Leases
) -> None:
    shard, statement = own(), "SELECT lag_seconds FROM penstock.shard WHERE id = {}"
    leases.hold(shard, lease.now() + 3600, lambda _: None, lambda: 7.5)
    wait_for_renewals(postgres, shard)
    assert run(postgres, statement.format(shard.number)) == [(7.5,)]
    leases.let_go(shard.number)
    with closing(Connection(postgres.url())) as connection:
        Shard(connection, shard.number).acquire("owner", "here")
    assert run(postgres, statement.format(shard.number)) == [(None,)], "a new owner does not know yet"


def test_one_statement_renews_all_leases_until_they_are_let_go(
    postgres: Postgres, own: Callable[[], Shard], leases: Leases
) -> None:
    shards = [own(), own(), own()]
    for shard in shards:
        leases.hold(shard, lease.now() + 3600, lambda _: None)
    for shard in shards:
        wait_for_renewals(postgres, shard)
    numbers = ",".join(str(shard.number) for shard in shards)
    moments = run(postgres, f"SELECT count(DISTINCT xmin::text) FROM penstock.shard WHERE id IN ({numbers})")
    assert moments == [(1,)]
    threads = [thread for thread in threading.enumerate() if thread.name == "lease"]
    for shard in shards:
        leases.let_go(shard.number)
    for thread in threads:
        thread.join(60)


def test_a_shard_is_held_again_after_all_were_let_go(
    postgres: Postgres, own: Callable[[], Shard], leases: Leases
) -> None:
    shard = own()
    leases.hold(shard, lease.now() + 3600, lambda _: None)
    leases.let_go(shard.number)
    leases.hold(shard, lease.now() + 3600, lambda _: None)
    wait_for_renewals(postgres, shard)
    leases.let_go(shard.number)
