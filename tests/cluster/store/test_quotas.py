"""A quota is one account over all workers: a client that is connected to several has it once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from penstock.cluster.links.link import Link
from penstock.cluster.routing.shared_quotas import owner_of_account
from penstock.config.quotas import QuotaConfig, QuotaLimits
from tests.support.http_client import Connection
from tests.support.sharded import Store, a_store

QUOTA = 80
SLICE = QUOTA // 8
WORKERS = (0, 1)
QUEUE = "limited"


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    limits = QuotaConfig(address=QuotaLimits(**getattr(request, "param", {"published_per_second": QUOTA})))
    with a_store(tmp_path / "store", 2, 2, quota=limits) as store:
        yield store


def publish(connection: Connection, queue: str = QUEUE) -> bool:
    """Whether it was accepted."""
    response = connection.request("POST", f"/v1/queues/{queue}/messages", {}, b'{"message": "x"}')
    assert response.status in (201, 429), response.body
    return response.status == 201


def create(store: Store) -> None:
    assert store.request("PUT", f"/v1/queues/{QUEUE}", b"{}").status == 201


def until_refused(*connections: Connection, queue: str = QUEUE) -> int:
    """How many messages were published in turn before all connections were refused."""
    accepted, left = 0, list(connections)
    while left:
        for connection in list(left):
            if publish(connection, queue):
                accepted += 1
            else:
                left.remove(connection)
    return accepted


def test_a_client_of_two_workers_has_its_quota_once(store: Store) -> None:
    create(store)
    with store.connect(0) as first, store.connect(1) as second:
        began = time.monotonic()
        accepted = until_refused(first, second)
        assert accepted <= QUOTA * (1 + time.monotonic() - began) + SLICE + 1


@pytest.mark.parametrize("worker", WORKERS)
def test_one_connection_gets_nearly_all_of_it(store: Store, worker: int) -> None:
    create(store)
    with store.connect(worker) as connection:
        assert until_refused(connection) >= QUOTA * 0.9


def test_what_one_worker_has_granted_the_other_has_not(store: Store) -> None:
    create(store)
    with store.connect(0) as first, store.connect(1) as second:
        began = time.monotonic()
        until_refused(first)
        assert until_refused(second) <= QUOTA * (time.monotonic() - began) + SLICE + 1


@pytest.mark.parametrize("store", [{"connections": QUOTA}], indirect=True)
def test_connections_are_counted_over_all_workers(store: Store) -> None:
    with ExitStack() as stack:
        accepted = 0
        for worker in range(2 * QUOTA + 4 * SLICE):
            connection = stack.enter_context(store.connect(worker % 2))
            with suppress(OSError, AssertionError):  # It was closed.
                accepted += connection.request("GET", "/health").status == 200
        assert QUOTA - 2 <= accepted <= QUOTA + SLICE


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("store", [{"connections": QUOTA}], indirect=True)
def test_all_connections_may_be_to_one_worker(store: Store, worker: int) -> None:
    with ExitStack() as stack:
        for _ in range(QUOTA - 1):
            connection = stack.enter_context(store.connect(worker))
            assert connection.request("GET", "/health").status == 200


def test_a_worker_that_cannot_reach_the_owner_grants_a_fair_share(store: Store) -> None:
    owner = owner_of_account("address", "127.0.0.1", 2)
    other, queue = store.all[1 - owner], next(name for name in "abcd" if store.map.of_name(name) == 1 - owner)
    assert store.request("PUT", f"/v1/queues/{queue}", b"{}", worker=1 - owner).status == 201

    async def part() -> None:
        store.all[owner].mesh.stop()

    store.run(part())
    store.until(lambda: not other.mesh.links)
    with store.connect(1 - owner) as connection:
        began = time.monotonic()
        accepted = until_refused(connection, queue=queue)
        assert QUOTA / 2 <= accepted <= QUOTA / 2 * (1 + time.monotonic() - began) + 1


@pytest.mark.parametrize("store", [{"queues_per_minute": 8}], indirect=True)
def test_queues_of_other_workers_count_too(store: Store) -> None:
    settings = b'{"retention_timeout":60,"visibility_timeout":30,"message_deduplication":false}'
    names = [f"new-{number}" for number in range(30)]
    with store.connect(0) as connection:
        statuses = [connection.request("PUT", f"/queues/{name}", {}, settings).status for name in names]
    assert 8 <= statuses.count(201) <= 8 + 1 + 1, "all but a slice, and what comes back meanwhile"
    assert statuses[-1] == 429


def test_a_link_that_comes_back_is_asked_again(store: Store) -> None:
    create(store)

    def link() -> Link | None:
        return store.all[0].mesh.links.get(1)

    lost = link()
    assert lost is not None

    async def cut() -> None:
        lost.close()

    with store.connect(0) as first, store.connect(1) as second:
        publish(first), publish(second)
        store.run(cut())
        store.until(lambda: link() not in (None, lost) and store.all[1].mesh.is_complete)
        began = time.monotonic()
        assert until_refused(first, second) <= QUOTA * (1 + time.monotonic() - began) + SLICE + 1
