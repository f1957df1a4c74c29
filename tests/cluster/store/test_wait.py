"""A wait follows a message that a redrive moves to another shard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.limits import WAIT_SECONDS_MAX
from tests.support.http_client import Connection
from tests.support.sharded import Store, a_store

NAMES = {"a": 0, "b": 1, "c": 2, "a-dead": 2, "d": 3}  # The numbers of some are higher than those of others.
STORES = {"one process, one shard": (1, 1), "two workers, four shards": (4, 2)}


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    shards, workers = STORES[request.param]
    with a_store(tmp_path_factory.mktemp("waits") / "store", shards, workers, NAMES if shards > 1 else {}) as store:
        for name in ("b", "c", "a-dead"):
            assert store.request("PUT", f"/v1/queues/{name}", b"{}").status == 201
        settings = {"visibility_timeout": 0, "redrive_policy": {"max_receives": 1, "dead_letter_queue": "a-dead"}}
        for name in ("a", "d"):
            assert store.request("PUT", f"/v1/queues/{name}", json.dumps(settings).encode()).status == 201
        yield store


def ask(store: Store, method: str, target: str, document: Any = None) -> Any:
    response = store.request(method, target, None if document is None else json.dumps(document).encode())
    assert response.status in (200, 201, 204), response.body
    return response.json() if response.body else None


def published(store: Store, queue: str) -> str:
    found: str = ask(store, "POST", f"/v1/queues/{queue}/messages", {"message": "m"})["id"]
    return found


def begin_wait(connection: Connection, *ids: str, until: str = "done") -> None:
    body = json.dumps({"ids": ids, "until": until, "wait": WAIT_SECONDS_MAX}).encode()
    connection.send_request("POST", "/v1/wait", body=body)


def entries(connection: Connection) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection.read_response().json()["messages"]
    return found


def waited(store: Store) -> int:
    """In how many places messages are waited for."""
    waits = [shard.services.waits for worker in store.all for shard in worker.shards.values()]
    return sum(int(dict(each.state())["penstock_waited_messages"][0][1]) for each in waits)


def move(store: Store, source: str, to: str) -> None:
    assert ask(store, "POST", "/v1/redrive", {"from": source, "to": to})["moved"] == 1


def take(store: Store, queue: str) -> str:
    (message,) = ask(store, "GET", f"/v1/queues/{queue}/messages?wait=20&consumer=worker")
    found: str = message["id"]
    return found


def test_who_waits_hears_of_the_end_in_another_shard(store: Store) -> None:
    message = published(store, "b")
    with store.connect(0) as waiting:
        begin_wait(waiting, message)
        store.until(lambda: waited(store) > 0)
        move(store, "b", "c")
        assert take(store, "c") == message
        ask(store, "POST", "/v1/confirm", {"id": message})
        (entry,) = entries(waiting)
    assert (entry["id"], entry["outcome"], entry["consumer"]) == (message, "success", "worker")
    store.until(lambda: waited(store) == 0)


def test_who_waits_until_it_is_taken_hears_of_that(store: Store) -> None:
    message, other = published(store, "b"), published(store, "a-dead")
    with store.connect(store.workers - 1) as waiting:
        begin_wait(waiting, message, other, until="taken")
        store.until(lambda: waited(store) > 1)
        move(store, "b", "c")
        take(store, "c")
        (entry,) = entries(waiting)
    assert (entry["id"], entry["state"], entry["consumer"]) == (message, "F", "worker")
    ask(store, "POST", "/v1/confirm", {"id": message})
    ask(store, "DELETE", f"/v1/messages/{other}")


def test_a_message_that_has_ended_in_another_shard_is_answered_at_once(store: Store) -> None:
    message = published(store, "b")
    move(store, "b", "c")
    take(store, "c")
    ask(store, "POST", "/v1/confirm", {"id": message})
    (entry,) = ask(store, "POST", "/v1/wait", {"ids": [message], "wait": 0})["messages"]
    assert entry["outcome"] == "success"


def test_a_document_that_waits_is_that_of_the_end(store: Store) -> None:
    message = published(store, "b")
    with store.connect(0) as waiting:
        waiting.send_request("GET", f"/v1/messages/{message}?until=done&wait={WAIT_SECONDS_MAX}")
        store.until(lambda: waited(store) > 0)
        move(store, "b", "c")
        take(store, "c")
        ask(store, "POST", "/v1/confirm", {"id": message})
        document = waiting.read_response().json()
    assert (document["id"], document["state"], document["success"]) == (message, "X", True)


def test_a_message_that_moves_twice_is_followed(store: Store) -> None:
    message = published(store, "b")
    with store.connect(0) as waiting:
        begin_wait(waiting, message)
        store.until(lambda: waited(store) > 0)
        move(store, "b", "c")
        store.until(lambda: any(search(store, "c")))
        move(store, "c", "b")
        take(store, "b")
        ask(store, "POST", "/v1/confirm", {"id": message})
        (entry,) = entries(waiting)
    assert entry["outcome"] == "success"


def test_a_dead_letter_that_goes_back_is_waited_for(store: Store) -> None:
    message = published(store, "a")
    take(store, "a")
    store.until(lambda: any(search(store, "a-dead")))
    (entry,) = ask(store, "POST", "/v1/wait", {"ids": [message]})["messages"]
    assert entry["outcome"] == "dead_lettered"
    move(store, "a-dead", "a")
    store.until(lambda: any(search(store, "a")))
    assert ask(store, "POST", "/v1/wait", {"ids": [message]})["messages"] == []
    with store.connect(store.workers - 1) as waiting:
        begin_wait(waiting, message)
        store.until(lambda: waited(store) > 0)
        ask(store, "DELETE", f"/v1/messages/{message}")
        (entry,) = entries(waiting)
    assert entry["outcome"] == "deleted"


@pytest.mark.parametrize("queue", ["a", "d"])
def test_the_document_of_a_message_has_its_life_in_all_shards(store: Store, queue: str) -> None:
    """Wherever it is: on its way, in another shard, or home again."""
    message = published(store, queue)
    take(store, queue)
    dead = ask(store, "GET", f"/v1/messages/{message}")
    assert [place["queue"] for place in dead["places"]] == ["a-dead"]
    store.until(lambda: any(search(store, "a-dead")))
    move(store, "a-dead", queue)
    back = ask(store, "GET", f"/v1/messages/{message}")
    assert [(place["queue"], place["state"]) for place in back["places"]] == [(queue, "Q")]
    ask(store, "DELETE", f"/v1/messages/{message}")
    gone = ask(store, "GET", f"/v1/messages/{message}")
    assert [(place["queue"], place["state"]) for place in gone["places"]] == [(queue, "D")]
    letters = "".join(event["state"] for event in gone["events"])
    assert letters in ("LQFEQQD", "LQFEQD"), "one process has no event for the way back"


def search(store: Store, queue: str) -> list[int]:
    """The messages in a queue; from within its event loop."""
    shards = {number: shard for worker in store.all for number, shard in worker.shards.items()}
    found = shards[store.map.of_name(queue)].loop.engine.queue(queue)
    return [each for each in range(1, found.last_sequence + 1) if found.rows.get(each)] if found else []
