"""A pull of several queues, while the worker that has one of them is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_client import Connection, Response
from tests.support.sharded import Store, a_store

LONG = 600


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """`here` is in the worker that is asked, `there` in the other one; each has one message."""
    with a_store(tmp_path / "two", 2, 2, {"here": 0, "there": 1, "jobs": 1}) as store:
        post(store, "here", "there")
        yield store


def post(store: Store, *queues: str) -> None:
    body = json.dumps({"messages": {queue: ["tea"] for queue in queues}}).encode()
    assert store.request("POST", "/post", body, 0).status == 200


def pull(store: Store, **fields: Any) -> Response:
    return store.request("POST", "/pull", request(**fields), 0)


def request(queues: dict[str, Any] | None = None, **fields: Any) -> bytes:
    wanted = {"here": {}, "there": {}} if queues is None else queues
    return json.dumps({"receiver": "me", "timeout": 0, "queues": wanted, **fields}).encode()


@contextmanager
def away(store: Store) -> Iterator[None]:
    """Without links between the workers."""
    store.run(know(store))
    store.until(lambda: not store.all[0].mesh.links)
    yield
    store.run(know(store, 0))
    store.until(lambda: store.all[0].mesh.is_complete)


async def know(store: Store, *others: int) -> None:
    mesh = store.all[1].mesh
    mesh.know(others)
    for link in [] if others else list(mesh.links.values()):
        link.close()


def waiting(store: Store, shard: int) -> int:
    worker = store.all[shard]
    return int(worker.shards[shard].loop.waiters.count)


@contextmanager
def pulling(store: Store, shard: int = 0, **fields: Any) -> Iterator[Connection]:
    with store.connect(0) as connection:
        connection.send_request("POST", "/pull", body=request(timeout=LONG, **fields))
        store.until(lambda: waiting(store, shard) == 1)
        yield connection


def bodies(answer: Response) -> dict[str, list[str] | None]:
    assert answer.status == 200, answer
    messages = answer.json()["messages"]
    return {queue: found and [each["message"] for each in found] for queue, found in messages.items()}


def test_what_is_there_is_delivered_and_the_queue_that_is_away_is_null(store: Store) -> None:
    with away(store):
        assert bodies(pull(store)) == {"here": ["tea"], "there": None}
    assert bodies(pull(store)) == {"there": ["tea"]}


def test_with_nothing_to_deliver_the_queue_that_is_away_has_no_last_id(store: Store) -> None:
    assert bodies(pull(store)) == {"here": ["tea"], "there": ["tea"]}
    with away(store):
        answer = pull(store)
        assert (answer.status, answer.json()) == (404, {"here": 1, "there": None})
    assert pull(store).json() == {"here": 1, "there": 1}


def test_a_pull_waits_for_the_queues_that_are_there(store: Store) -> None:
    pull(store)
    with away(store), pulling(store) as connection:
        post(store, "here")
        assert bodies(connection.read_response()) == {"here": ["tea"], "there": None}


def test_a_pull_that_waits_gets_what_comes_into_a_queue_that_was_away(store: Store) -> None:
    pull(store)
    with away(store):
        waits = pulling(store)
        connection = waits.__enter__()
    store.until(lambda: waiting(store, 1) == 1)
    post(store, "there")
    assert bodies(connection.read_response()) == {"there": ["tea"]}
    waits.__exit__(None, None, None)


def test_a_pull_that_waits_goes_on_when_a_queue_goes_away(store: Store) -> None:
    pull(store)
    with pulling(store) as connection:
        store.until(lambda: waiting(store, 1) == 1)
        with away(store):
            post(store, "here")
            assert bodies(connection.read_response()) == {"here": ["tea"], "there": None}


def test_results_that_are_not_stored_are_named_and_the_others_are_stored(store: Store) -> None:
    pull(store)
    post(store, "here")
    results = {"here": {"1": "two cups"}, "there": {"1": "one cup"}}
    with away(store):
        answer = pull(store, results=results)
        assert (answer.status, answer.json()) == (503, {"_error": "results.there.1: unavailable now"})
        assert (answer.header("X-Penstock-Code"), answer.header("Retry-After")) == ("unavailable", "1")
    assert stored(store, "here") == "two cups"
    assert bodies(pull(store, results=results)) == {"here": ["tea"]}, "nothing was pulled before, so nothing is lost"
    assert stored(store, "there") == "one cup"


def stored(store: Store, queue: str) -> Any:
    return store.request("GET", f"/v1/results/{queue}/1?timeout=0", worker=0).json()["result"]


def test_results_that_are_stored_are_not_refused_with_a_queue_that_is_away(store: Store) -> None:
    pull(store)
    with away(store):
        answer = pull(store, queues={"there": {}}, results={"here": {"1": "two cups"}})
        assert (answer.status, answer.json()) == (404, {"there": None})
    assert stored(store, "here") == "two cups"


def test_nothing_is_delivered_if_one_queue_cannot_be_read_so(store: Store) -> None:
    assert store.request("PUT", "/v1/queues/jobs", b"{}", 0).status == 201
    answer = pull(store, queues={"here": {}, "jobs": {"start": 5}}, results={"here": {"1": "two cups"}})
    assert (answer.status, answer.header("X-Penstock-Code")) == (400, "no_cursor")
    assert store.request("GET", "/v1/results/here/1?timeout=0", worker=0).status == 404
    assert bodies(pull(store)) == {"here": ["tea"], "there": ["tea"]}


def test_results_are_not_stored_again_when_the_queue_goes_away_while_their_pull_waits(store: Store) -> None:
    assert store.request("PUT", "/v1/queues/jobs", b"{}", 0).status == 201
    post(store, "jobs")
    jobs = {"jobs": {"retry_num": 1}}
    assert bodies(pull(store, queues=jobs)) == {"jobs": ["tea"]}
    with pulling(store, 1, queues=jobs, results={"jobs": {"1": "done"}}) as connection:
        with away(store):
            store.until(lambda: waiting(store, 1) == 0)
        store.until(lambda: waiting(store, 1) == 1)
        post(store, "jobs")
        assert bodies(connection.read_response()) == {"jobs": ["tea"]}


def test_what_comes_while_results_are_stored_is_new_for_a_pull_that_waits_with_them(store: Store) -> None:
    assert bodies(pull(store, queues={"there": {"retry_num": 1}})) == {"there": ["tea"]}
    newer = {"there": {"start": -2, "retry_num": 1}}
    with pulling(store, 1, queues=newer, results={"there": {"1": "done"}}) as connection:
        post(store, "there")
        assert bodies(connection.read_response()) == {"there": ["tea"]}
