"""The lease of a shard: renewed as long as it is ours, and lost for good when it is not."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg
import pytest

from penstock.errors import FencedError, StoreError
from penstock.storage.postgres import lease
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.lease import Lease
from penstock.storage.postgres.shard import Shard
from tests.support.postgres import Postgres


@pytest.fixture
def owned(postgres: Postgres) -> Shard:
    url, number = postgres.new_shard()
    with closing(Connection(url)) as connection:
        shard = Shard(connection, number)
        shard.acquire("owner", "here")
    return shard


def run(postgres: Postgres, statement: str) -> list[tuple[object, ...]]:
    with closing(psycopg.connect(postgres.url(), autocommit=True)) as session:
        return session.execute(statement.encode()).fetchall()


def lost_by(connect: object, shard: Shard, renewed_at: float) -> BaseException:
    lost: list[BaseException] = []
    over = threading.Event()

    def note(error: BaseException) -> None:
        lost.append(error)
        over.set()

    held = Lease(connect, shard, renewed_at, note)  # type: ignore[arg-type]
    held.start()
    assert over.wait(60)
    held.stop()
    return lost[0]


def test_a_lease_is_lost_when_another_owner_has_come(
    postgres: Postgres, owned: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_RENEW", 0.01)
    run(postgres, f"UPDATE penstock.shard SET epoch = epoch + 1 WHERE id = {owned.number} RETURNING 1")
    assert isinstance(lost_by(lambda: Connection(postgres.url()), owned, lease.now()), FencedError)


def test_a_lease_that_cannot_be_renewed_is_lost_before_it_ends_in_the_store(
    postgres: Postgres, owned: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Connection:
        raise StoreError("no route")

    error = lost_by(refuse, owned, lease.now() - owned.lease_seconds)
    assert str(error) == "the lease could not be renewed for 4 s"


def test_renewals_go_on_until_the_lease_is_stopped(
    postgres: Postgres, owned: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "_RENEW", 0.01)
    until = f"SELECT lease_until FROM penstock.shard WHERE id = {owned.number}"
    held = Lease(lambda: Connection(postgres.url()), owned, lease.now() + 3600, lambda error: None)
    held.start()
    seen: set[object] = set()
    while len(seen) < 4:
        seen.add(run(postgres, until)[0])
    held.stop()
    held._threads[0].join(60)
