"""`/v1/cluster` says who serves which shard: one process, workers of one machine, and nodes on one store."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, StartBroker, workers_of
from tests.support.http_client import Connection
from tests.support.nodes import nodes_on, until
from tests.support.postgres import Postgres
from tests.support.waiting import wait_until

SHARDS = 4
CONNECTIONS = 12  # So many that each worker gets some.
ADMIN = {"Authorization": "Bearer admin"}


def asked(connection: Broker | Connection) -> dict[str, Any]:
    answer = connection.request("GET", "/v1/cluster")
    assert answer.status == 200, answer
    found: dict[str, Any] = answer.json()
    return found


def test_one_process_has_its_only_shard(broker: Broker) -> None:
    address = "{}:{}".format(*broker.http)
    shard = {"shard": 0, "owner": "0", "address": address, "epoch": 0, "here": True, "reachable": True}
    about = {"state": "serves", "shards": 1, "linked": None, "seen_seconds_ago": None, "this": True}
    member = {"name": "0", "number": 0, "address": address, **about}
    assert asked(broker) == {"kind": "single", "shards": [shard], "members": [member]}


def test_only_administrators_see_it(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=admin")
    made = broker.request("PUT", "/v1/tokens/reader", ADMIN, b'{"scopes": ["read:*"]}')
    reader = {"Authorization": f"Bearer {made.json()['token']}"}
    assert broker.request("GET", "/v1/cluster").status == 401
    assert broker.request("GET", "/v1/cluster", reader).json()["code"] == "forbidden"
    assert broker.request("GET", "/v1/cluster", ADMIN).status == 200
    assert broker.request("GET", "/v1/cluster?shard=1", ADMIN).status == 400


def test_each_worker_has_its_own_shards_and_reaches_all(start_broker: StartBroker) -> None:
    broker = start_broker(flags=("--workers", "2", "--shards", str(SHARDS)))
    with ExitStack() as stack:
        connections = [stack.enter_context(broker.connect()) for _ in range(CONNECTIONS)]
        found = [asked(each) for each in connections]
    for state in found:
        (this,) = [member["name"] for member in state["members"] if member["this"]]
        assert state["kind"] == "workers"
        assert [shard["owner"] for shard in state["shards"]] == ["0", "1", "0", "1"]
        assert [shard["owner"] == this for shard in state["shards"]] == [shard["here"] for shard in state["shards"]]
        assert all(shard["reachable"] for shard in state["shards"])
        shown = [(each["number"], each["state"], each["shards"]) for each in state["members"]]
        assert shown == [(0, "serves", 2), (1, "serves", 2)]
        assert [each["linked"] for each in state["members"] if not each["this"]] == [True]


@pytest.fixture
def without_supervisor(start_broker: StartBroker) -> Iterator[Broker]:
    """Two workers; one that is killed does not come back, because the supervisor stands still."""
    broker = start_broker(flags=("--workers", "2", "--shards", str(SHARDS)))
    os.kill(broker.pid, signal.SIGSTOP)
    yield broker
    os.kill(broker.pid, signal.SIGCONT)


def test_the_shards_of_a_worker_that_is_gone_are_not_reachable_until_it_is_back(without_supervisor: Broker) -> None:
    broker = without_supervisor
    with ExitStack() as stack:
        connections = [stack.enter_context(broker.connect()) for _ in range(CONNECTIONS)]
        (first, *_) = [each for each in connections if asked(each)["members"][0]["this"]]
        os.kill(workers_of(broker)[1], signal.SIGKILL)
        wait_until(lambda: asked(first)["members"][1]["state"] == "gone", "worker 1 is gone")
        state = asked(first)
        assert [each["linked"] for each in state["members"]] == [None, False]
        assert [each["reachable"] for each in state["shards"]] == [True, False, True, False]
        os.kill(broker.pid, signal.SIGCONT)
        wait_until(lambda: all(each["reachable"] for each in asked(first)["shards"]), "all are reachable")


@pytest.fixture
def store(postgres: Postgres) -> str:
    return postgres.new_store(SHARDS)


def test_each_node_knows_from_the_store_who_has_what_and_reaches_it(store: str, tmp_path: Path) -> None:
    with nodes_on(store, tmp_path, 2, "store_lease_seconds=12") as nodes:
        until(lambda: all(is_whole(asked(node)) for node in nodes))
        one, other = (asked(node) for node in nodes)
        assert [each["owner"] for each in one["shards"]] == [each["owner"] for each in other["shards"]]
        assert [each["here"] for each in one["shards"]] == [not each["here"] for each in other["shards"]]
        assert all(each["epoch"] > 0 for each in one["shards"])
        for state, node in ((one, nodes[0]), (other, nodes[1])):
            (this,) = [each for each in state["members"] if each["this"]]
            assert this["address"] == "{}:{}".format(*node.http)
            assert {each["owner"] for each in state["shards"] if each["here"]} == {this["name"]}
            assert 0 <= this["seen_seconds_ago"] < 12
        nodes[1].stop()
        until(lambda: all(each["here"] for each in asked(nodes[0])["shards"]))
        until(lambda: [(each["shards"], each["this"]) for each in asked(nodes[0])["members"]] == [(SHARDS, True)])


def is_whole(state: dict[str, Any]) -> bool:
    held = [(each["state"], each["shards"]) for each in state["members"]]
    return held == [("serves", 2)] * 2 and all(each["reachable"] for each in state["shards"])
