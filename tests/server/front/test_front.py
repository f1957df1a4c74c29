"""Requests for a store with four shards, sent to either of its two workers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import pytest

from penstock.server.front.paths import PATHS
from tests.support.sharded import Store, a_store

SHARDS, WORKERS = 4, 2
QUEUES = {f"queue-{shard}": shard for shard in range(SHARDS)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with a_store(tmp_path_factory.mktemp("store") / "four", SHARDS, WORKERS, QUEUES) as store:
        for name in QUEUES:
            assert store.request("PUT", f"/v1/queues/{name}", b"{}").status == 201
        yield store


def test_every_path_has_a_row(store: Store) -> None:
    assert PATHS.keys() == store.all[0].own[0].routes.keys()


def test_rows_that_depend_on_the_method_have_all_methods(store: Store) -> None:
    routes = store.all[0].own[0].routes
    for path, row in PATHS.items():
        if isinstance(row, Mapping):
            assert row.keys() == routes[path].keys(), path


@pytest.mark.parametrize("worker", range(WORKERS))
@pytest.mark.parametrize("queue", QUEUES)
def test_every_worker_answers_for_every_queue(store: Store, queue: str, worker: int) -> None:
    changed = store.request("PATCH", f"/v1/queues/{queue}", b'{"retries": 7}', worker=worker)
    assert (changed.status, changed.json()["retries"]) == (200, 7)
    published = store.request("POST", f"/v1/queues/{queue}/messages", b'{"message": "hello"}', worker=worker)
    identifier = published.json()["id"]
    (message,) = store.request("GET", f"/v1/queues/{queue}/messages", worker=worker).json()
    assert (message["id"], message["message"]) == (identifier, "hello")
    document = store.request("GET", f"/v1/messages/{identifier}", worker=worker).json()
    assert (document["queue"], document["state"]) == (queue, "F")
    confirmed = store.request("POST", "/v1/confirm", json.dumps({"id": identifier}).encode(), worker=worker)
    assert confirmed.json()["outcome"] == "success"
