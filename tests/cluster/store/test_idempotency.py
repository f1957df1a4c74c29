"""An idempotency key is one for the whole store, whatever shards the requests with it are for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.http_client import Response
from tests.support.sharded import Store, a_store

NAMES = {"a": 0, "b": 1, "c": 2, "d": 3}
STORES = {"one process, one shard": (1, 1), "two workers, four shards": (4, 2)}
KEYS = [f"key-{number}" for number in range(8)]  # Their shards differ.


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    shards, workers = STORES[request.param]
    with a_store(tmp_path_factory.mktemp("keys") / "store", shards, workers, NAMES if shards > 1 else {}) as store:
        for name in NAMES:
            assert store.request("PUT", f"/v1/queues/{name}", b"{}").status == 201
        yield store


def post(store: Store, key: str, *topics: str, message: str = "m") -> Response:
    """One message for each topic."""
    document = [{"topics": [topic], "message": message} for topic in topics]
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    return store.request("POST", "/v1/publish", json.dumps(document).encode(), headers=headers)


def messages(store: Store, queue: str) -> int:
    status: dict[str, Any] = store.request("GET", f"/v1/queues/{queue}").json()["status"]
    return int(status["messages"])


@pytest.mark.parametrize("key", KEYS)
def test_a_key_that_was_used_for_another_queue_is_refused(store: Store, key: str) -> None:
    before = {name: messages(store, name) for name in NAMES}
    first = post(store, key, "a")
    assert first.status == 201
    for other in ("b", "c", "d"):
        refused = post(store, key, other)
        assert (refused.status, refused.json()["code"]) == (422, "idempotency_key_reused")
    again = post(store, key, "a")
    assert (again.json(), again.header("Idempotent-Replay")) == (first.json(), "true")
    assert {name: messages(store, name) - before[name] for name in NAMES} == {"a": 1, "b": 0, "c": 0, "d": 0}


@pytest.mark.parametrize("key", KEYS)
def test_a_request_for_several_queues_counts_once(store: Store, key: str) -> None:
    before, key = {name: messages(store, name) for name in NAMES}, f"several {key}"
    first = post(store, key, *NAMES)
    assert first.status == 201
    assert post(store, key, *NAMES).json() == first.json()
    assert post(store, key, "b", "c").status == 422
    assert {name: messages(store, name) - before[name] for name in NAMES} == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize("key", KEYS)
def test_the_key_of_a_request_that_was_refused_may_be_used_again(store: Store, key: str) -> None:
    headers, body = {"Content-Type": "application/json", "Idempotency-Key": f"none {key}"}, b'{"message": "m"}'
    refused = store.request("POST", "/v1/queues/nowhere/messages", body, headers=headers)
    assert (refused.status, refused.json()["code"]) == (404, "no_queue")
    assert store.request("POST", "/v1/queues/c/messages", body, headers=headers).status == 201
    assert store.request("POST", "/v1/queues/d/messages", body, headers=headers).status == 422
