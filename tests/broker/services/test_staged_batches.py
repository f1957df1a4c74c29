"""Rows for queues of several shards: staged and committed in one of them, and once in each queue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.broker.services.contract import answer_to
from penstock.model.commands import NewMessage, PublishRun, TakeRows
from tests.support.http_client import Response
from tests.support.sharded import Store, a_store
from tests.support.staged_rows import arrow

QUEUES = {"here": 0, "there": 1}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("staging") / "store"
    with a_store(folder, shards=2, workers=2, elsewhere=QUEUES | {"topic": 1, "channel": 1}) as store:
        for queue in QUEUES:
            assert store.request("PUT", f"/v1/queues/{queue}").status == 201
        yield store


def stage(store: Store, rows: dict[str, list[str]], query: str) -> Response:
    return store.request("POST", f"/v1/stage/{query}/0/part?chunk=0", arrow(rows))


def commit(store: Store, query: str) -> Response:
    body = json.dumps({"parts": [{"part": "part", "chunks": 1}]}).encode()
    return store.request("POST", f"/v1/stage/{query}/0/commit", body)


def bodies(store: Store, queue: str, count: int) -> list[str]:
    """Takes so many, and one more if there is one."""
    answer = store.request("GET", f"/v1/queues/{queue}/messages?max={count + 1}")
    return [str(each["message"]) for each in answer.json()]


def mixed(count: int) -> dict[str, list[str]]:
    return {"body": [f"row {number}" for number in range(count)], "queue": list(QUEUES) * (count // 2)}


def test_rows_for_queues_of_two_shards_are_in_each_once(store: Store) -> None:
    assert stage(store, mixed(10), "mixed").status == 201
    for _ in range(2):
        assert commit(store, "mixed").status == 200
    for start, queue in enumerate(QUEUES):
        assert bodies(store, queue, 5) == [f"row {number}" for number in range(start, 10, 2)]


def test_a_step_that_the_other_shard_has_already_is_not_repeated(store: Store) -> None:
    """As after a crash between the two records; the rows are cut otherwise then."""
    rows = {"body": [f"row {number}" for number in range(10)], "queue": ["there"] * 10}
    assert stage(store, rows, "crashed").status == 201
    known = PublishRun("there", NewMessage(b""), [b"row %d" % number for number in range(4)])
    port = store.all[0].mesh.ports[1]

    async def taken() -> object:
        return await answer_to(port, TakeRows("crashed", 0, (0, 0), (0, 4), known))

    store.run(taken())
    assert commit(store, "crashed").status == 200
    assert bodies(store, "there", 10) == [f"row {number}" for number in range(10)]


def test_rows_for_topics_go_to_the_shard_of_their_queue(store: Store) -> None:
    rows = {"body": ["one", "two", "three"], "topics": ["topic.a", "here", "topic.b"]}
    assert stage(store, rows, "topics").status == 201
    assert commit(store, "topics").status == 200
    assert bodies(store, "topic", 2) == ["one", "three"]
    assert bodies(store, "here", 1) == ["two"]


def test_a_queue_that_no_shard_has_and_a_channel_are_refused(store: Store) -> None:
    assert store.request("PUT", "/v1/channels/channel", b'{"topics": ["any.*"]}').status == 201
    missing = stage(store, {"body": ["row"], "queue": ["nowhere"]}, "wrong")
    assert (missing.status, missing.json()["code"]) == (404, "no_queue")
    channel = stage(store, {"body": ["row"], "topics": ["channel"]}, "wrong")
    assert (channel.status, channel.json()["code"]) == (409, "is_channel")
