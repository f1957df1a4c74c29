"""What clients of the native API see of a store after it was moved to several shards: the same as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cli.reshard.making import reshard
from penstock.storage.backup.making import Progress
from penstock.storage.shards import read_shards
from tests.support.broker import StartBroker
from tests.support.http_client import Response
from tests.support.sharded import a_store

SHARDS, WORKERS = 3, 2
QUEUES = {
    "dead": {},
    "orders": {"redrive_policy": {"max_receives": 1, "dead_letter_queue": "dead"}},
    "jobs": {},
    "kept": {"keep": "all"},
}

Request = Callable[[str, str, Any], Response]


def fill(ask: Request) -> list[str]:
    """Messages in every state. Returns their ids."""
    for name, settings in QUEUES.items():
        assert ask("PUT", f"/v1/queues/{name}", settings).status == 201
    ids = [ask("POST", f"/v1/queues/{name}/messages", {"message": f"to {name}"}).json()["id"] for name in QUEUES]
    ids.append(ask("POST", "/v1/queues/jobs/messages", {"message": "later", "delay": 3600}).json()["id"])
    ids.append(ask("POST", "/v1/publish", {"message": "twice", "topics": ["jobs.x", "kept.x"]}).json()["id"])
    assert ask("GET", "/v1/queues/orders/messages?lease=3600", None).status == 200  # Its only delivery.
    assert ask("GET", "/v1/queues/jobs/messages?lease=3600", None).status == 200
    return ids


def without(document: Any, *names: str) -> Any:
    return {name: value for name, value in document.items() if name not in names}


def timeless(queue: dict[str, Any]) -> dict[str, Any]:
    """The document of a queue, without ages."""
    return queue | {"status": {name: value for name, value in queue["status"].items() if "age" not in name}}


def test_documents_events_and_queues_are_the_same_as_before(start_broker: StartBroker, tmp_path: Path) -> None:
    data = tmp_path / "store" / "data"
    broker = start_broker(data=data)

    def ask(method: str, target: str, body: Any = None) -> Response:
        headers = {"Content-Type": "application/json"}
        return broker.request(method, target, headers, None if body is None else json.dumps(body).encode())

    ids = fill(ask)
    documents = {each: ask("GET", f"/v1/messages/{each}").json() for each in ids}
    events = [json.loads(line) for line in ask("GET", "/v1/events").body.splitlines()]
    queues = {name: ask("GET", f"/v1/queues/{name}").json() for name in QUEUES}
    broker.stop()
    reshard(data, SHARDS, None, Progress())
    stored = read_shards(data)
    assert stored
    with a_store(tmp_path / "store", SHARDS, WORKERS, stored.elsewhere) as store:
        for each in [*ids[:1], *ids[2:]]:
            for worker in range(WORKERS):
                assert store.request("GET", f"/v1/messages/{each}", worker=worker).json() == documents[each]
        for name, before in queues.items():
            assert timeless(store.request("GET", f"/v1/queues/{name}").json()) == timeless(before)
        seen = [json.loads(line) for line in store.request("GET", "/v1/events").body.splitlines()]
        assert [without(each, "next", "shard") for each in seen] == [
            without(each, "next", "shard") for each in events
        ]
