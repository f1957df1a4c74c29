"""Requests for a store with four shards, sent to either of its two workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.cluster.routing.questions import QUESTIONS
from penstock.limits import WAIT_SECONDS_MAX
from tests.support.http_client import Connection
from tests.support.live_loop import until
from tests.support.sharded import Store, a_store

SHARDS, WORKERS = 4, 2
QUEUES = {f"queue-{shard}": shard for shard in range(SHARDS)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with a_store(tmp_path_factory.mktemp("store") / "four", SHARDS, WORKERS, QUEUES) as store:
        for name in QUEUES:
            assert store.request("PUT", f"/v1/queues/{name}", b"{}").status == 201
        yield store


def test_every_question_has_somebody_who_answers_it(store: Store) -> None:
    answering = store.all[0].shards[0].services.questions
    assert answering.answers.keys() | answering.at_once.keys() == QUESTIONS.keys()


@pytest.mark.parametrize("worker", range(WORKERS))
@pytest.mark.parametrize("queue", QUEUES)
def test_every_worker_answers_for_every_queue(store: Store, queue: str, worker: int) -> None:
    changed = store.request("PATCH", f"/v1/queues/{queue}", b'{"max_attempts": 7}', worker=worker)
    assert (changed.status, changed.json()["max_attempts"]) == (200, 7)
    published = store.request("POST", f"/v1/queues/{queue}/messages", b'{"message": "hello"}', worker=worker)
    identifier = published.json()["id"]
    (message,) = store.request("GET", f"/v1/queues/{queue}/messages", worker=worker).json()
    assert (message["id"], message["message"]) == (identifier, "hello")
    document = store.request("GET", f"/v1/messages/{identifier}", worker=worker).json()
    assert (document["queue"], document["state"]) == (queue, "F")
    confirmed = store.request("POST", "/v1/confirm", json.dumps({"id": identifier}).encode(), worker=worker)
    assert confirmed.json()["outcome"] == "success"


def test_long_bodies_reach_the_shard_of_another_worker(store: Store) -> None:
    """A query that is staged in shard 0, from worker 1."""
    rows = pa.table({"queue": ["queue-0"] * 3, "body": [bytes([each]) * 300_000 for each in range(3)]})
    data = pa.BufferOutputStream()
    with pa.ipc.new_stream(data, rows.schema) as stream:
        stream.write_table(rows)
    staged = store.request("POST", "/v1/stage/query/1/part", data.getvalue().to_pybytes(), worker=1)
    assert (staged.status, staged.json()) == (201, {"rows": 3})
    assert store.request("DELETE", "/v1/stage/query/1", worker=1).status == 204


def test_a_worker_that_is_away_is_missed_only_by_its_queues(tmp_path: Path) -> None:
    with a_store(tmp_path / "four", SHARDS, WORKERS, QUEUES) as store:
        for name in QUEUES:
            store.request("PUT", f"/v1/queues/{name}", b"{}")
        with store.connect(0) as waiting, store.connect(0) as following:
            waiting.send_request("GET", "/v1/queues/queue-1/messages?wait=20")
            following.begin("/v1/events?follow=true")
            store.run(away(store, 1))
            lost = waiting.read_response()
            assert (lost.status, lost.json()["code"]) == (503, "unavailable")
            assert "the connection to the process that has this queue was lost" in lost.json()["error"]
            with pytest.raises(ConnectionError):
                read_to_end(following)
        for target in ("/v1/queues/queue-3", "/v1/search", "/v1/stats", "/metrics", "/v1/events", "/v1/log?shard=1"):
            answer = store.request("GET", target, worker=0)
            assert (answer.status, answer.json()["code"]) == (503, "unavailable"), target
        for target in ("/v1/queues/queue-2", "/v1/search?queue=queue-0", "/v1/events?shard=2", "/v1/tokens"):
            assert store.request("GET", target, worker=0).status == 200, target
        health = store.request("GET", "/health", worker=0)
        assert (health.status, health.body) == (503, b"red: shard 1 cannot be reached")


def read_to_end(connection: Connection) -> None:
    while connection.read_chunk():
        pass


async def away(store: Store, worker: int) -> None:
    store.all[worker].mesh.stop()
    await until(lambda: not any(each.mesh.is_complete for each in store.all))


def test_answers_have_the_order_of_pipelined_requests(store: Store) -> None:
    targets = ["/v1/queues/queue-1", "/health", "/v1/search?limit=1", "/v1/queues/queue-0", "/nothing", "/v1/stats"]
    alone = [store.request("GET", target, worker=0).status for target in targets]
    with store.connect(0) as connection:
        for target in targets:
            connection.send_request("GET", target)
        assert [connection.read_response().status for _ in targets] == alone


def test_other_methods_and_paths_are_refused_as_ever(store: Store) -> None:
    assert store.request("POST", "/v1/search", b"").status == 405
    assert store.request("DELETE", "/v1/redrive").status == 405
    assert store.request("HEAD", "/v1/search").body == b""
    assert store.request("HEAD", "/v1/events").status == 200
    assert store.request("GET", "/v1/queues/%ff").json()["code"] == "bad_request"
    assert store.request("GET", "/status/%ff").json() == {"type": "Error", "name": "%ff", "code": "BadRequest"}
    assert store.request("POST", "/v1/redrive", b"{").json()["code"] == "bad_json"


def test_a_wait_for_messages_of_two_workers_ends_when_one_is_done(store: Store) -> None:
    ids = []
    for name in ("queue-0", "queue-1"):
        published = store.request("POST", f"/v1/queues/{name}/messages", b'{"message": "awaited"}')
        ids.append(published.json()["id"])
    waits = [shard.services.waits for worker in store.all for shard in worker.shards.values()]
    with store.connect(0) as waiting:
        waiting.send_request("POST", "/v1/wait", body=json.dumps({"ids": ids, "wait": WAIT_SECONDS_MAX}).encode())
        store.until(lambda: sum(dict(each.state())["penstock_waited_messages"][0][1] for each in waits) == 2)
        assert store.request("GET", "/v1/queues/queue-1/messages").json()[0]["id"] == ids[1]
        store.request("POST", "/v1/confirm", json.dumps({"id": ids[1]}).encode())
        (entry,) = waiting.read_response().json()["messages"]
        assert (entry["id"], entry["outcome"]) == (ids[1], "success")
    store.until(lambda: sum(dict(each.state())["penstock_waited_messages"][0][1] for each in waits) == 0)
    assert store.request("DELETE", f"/v1/messages/{ids[0]}").status == 204


def test_redrives_on_one_connection_go_to_the_shards_of_their_queues(store: Store) -> None:
    """Their heads are the same, and only their bodies tell which shard they are about."""
    names = [f"queue-{number}" for number in range(4)]
    with store.connect(0) as connection:
        for name in names:
            body = json.dumps({"from": name, "dry_run": True}).encode()
            answer = connection.request("POST", "/v1/redrive", {"Content-Type": "application/json"}, body)
            assert (answer.status, answer.json()["from"]) == (200, name)
