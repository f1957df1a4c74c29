"""What clients of the native API see of a store after it was moved to several shards: the same as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.broker import Broker, StartBroker
from tests.support.command_line import penstock
from tests.support.http_client import Response

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


def timeless(queue: dict[str, Any]) -> dict[str, Any]:
    """The document of a queue, without ages."""
    return queue | {"status": {name: value for name, value in queue["status"].items() if "age" not in name}}


def test_documents_events_and_queues_are_the_same_as_before(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = start_broker(data=tmp_path / "data")
    ids = fill(partial(ask, broker))
    documents = {each: ask(broker, "GET", f"/v1/messages/{each}").json() for each in ids}
    events = ask(broker, "GET", "/v1/events").body.splitlines()
    queues = {name: ask(broker, "GET", f"/v1/queues/{name}").json() for name in QUEUES}
    broker.stop()
    assert penstock("reshard", str(tmp_path / "data"), "--shards", str(SHARDS)).returncode == 0
    moved = start_broker(data=tmp_path / "data", flags=("--workers", str(WORKERS)))
    for each in ids:
        assert ask(moved, "GET", f"/v1/messages/{each}").json() == documents[each]
    for name, before in queues.items():
        assert timeless(ask(moved, "GET", f"/v1/queues/{name}").json()) == timeless(before)
    seen = ask(moved, "GET", "/v1/events").body.splitlines()
    assert list(map(without_place, seen)) == list(map(without_place, events))
    for name in ("dead", "kept"):
        (taken,) = ask(moved, "GET", f"/v1/queues/{name}/messages?lease=60").json()
        assert taken["message"] == f"to {name}"
    assert ask(moved, "DELETE", f"/v1/messages/{ids[4]}").status == 204
    assert ask(moved, "GET", f"/v1/messages/{ids[4]}").json()["status"] == "gone"


def ask(broker: Broker, method: str, target: str, body: Any = None) -> Response:
    headers = {"Content-Type": "application/json"}
    return broker.request(method, target, headers, None if body is None else json.dumps(body).encode())


def without_place(line: bytes) -> dict[str, Any]:
    """An event, without where it is."""
    return {name: value for name, value in json.loads(line).items() if name not in ("next", "shard")}
