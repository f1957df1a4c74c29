"""The answer to a publish names the channels of all shards."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.support.http_client import Response
from tests.support.sharded import Store, a_store

NAMES = {"a": 0, "b": 1, "mail": 2, "archive": 3, "old": 3, "near": 0}
STORES = {"one process, one shard": (1, 1), "two workers, four shards": (4, 2)}


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    shards, workers = STORES[request.param]
    with a_store(tmp_path_factory.mktemp("names") / "store", shards, workers, NAMES if shards > 1 else {}) as store:
        yield store


def call(store: Store, method: str, target: str, document: object, **headers: str) -> Response:
    response = store.request(method, target, json.dumps(document).encode(), headers=headers)
    assert response.status in (200, 201), response.body
    return response


def channels(store: Store, *topics: str, **facts: str) -> list[str]:
    found: list[str] = call(store, "POST", "/v1/publish", {"topics": topics, "message": "m", **facts}).json()[
        "channels"
    ]
    return sorted(found)


def test_a_publish_names_channels_wherever_they_are(store: Store) -> None:
    assert channels(store, "a.x") == []
    for name, topics in (("mail", ["a.*"]), ("archive", ["a.x", "b.*"]), ("near", ["a.x"])):
        call(store, "PUT", f"/v1/channels/{name}", {"topics": topics})
    assert channels(store, "a.x") == ["archive", "mail", "near"]
    assert channels(store, "a.y") == ["mail"]
    assert channels(store, "b.y", "a.y") == ["archive", "mail"]
    assert channels(store, "c") == []
    call(store, "PUT", "/v1/channels/mail", {"topics": ["b.z"]})
    assert channels(store, "a.y") == []
    assert channels(store, "b.z") == ["archive", "mail"]


def test_a_repeated_and_an_unchanged_publish_are_named_as_in_one_process(store: Store) -> None:
    call(store, "PUT", "/v1/channels/archive", {"topics": ["k.*"]})
    document = {"topics": ["k.x"], "message": "m"}
    first = call(store, "POST", "/v1/publish", document, **{"Idempotency-Key": "names"}).json()
    assert first["channels"] == ["archive"]
    assert call(store, "POST", "/v1/publish", document, **{"Idempotency-Key": "names"}).json() == first
    assert channels(store, "k.x", key="1") == ["archive"]
    assert channels(store, "k.x", key="1") == [], "it has not changed, and goes nowhere"


def test_a_channel_is_no_root_of_a_topic_wherever_it_is(store: Store) -> None:
    call(store, "PUT", "/v1/channels/mail", {"topics": ["m.*"]})
    for topics in (["mail.x"], ["a", "mail.x"], ["a", "b.y", "mail"]):
        message = {"topics": topics, "message": "m"}
        yearly = message | {"cron": "0 0 1 1 *"}
        for method, target, document in (("POST", "/v1/publish", message), ("PUT", "/v1/schedules/yearly", yearly)):
            refused = store.request(method, target, json.dumps(document).encode())
            assert (refused.status, refused.json()["code"]) == (409, "is_channel"), topics


def test_the_name_of_a_channel_that_is_deleted_may_be_a_root(store: Store) -> None:
    call(store, "PUT", "/v1/channels/old", {"topics": ["m.*"]})
    assert store.request("DELETE", "/v1/channels/old").status == 204
    document = json.dumps({"topics": ["a", "old.x"], "message": "m"}).encode()
    while (published := store.request("POST", "/v1/publish", document)).status == 409:
        pass
    assert published.json()["queues"] == ["a", "old"]


def test_a_channel_that_is_deleted_is_not_named_for_long(store: Store) -> None:
    call(store, "PUT", "/v1/channels/archive", {"topics": ["gone.*"]})
    assert channels(store, "gone.x") == ["archive"]
    assert store.request("DELETE", "/v1/channels/archive").status == 204
    while channels(store, "gone.x"):
        pass
