"""A message that is published to topics has copies in queues and channels of other shards. It is one message for its
producer: it has one document, and it is done when it is done everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.limits import WAIT_SECONDS_MAX
from tests.cluster.store.test_requests import away
from tests.support.http_client import Connection
from tests.support.sharded import Store, a_store

NAMES = {"fruit": 0, "food": 1, "mail": 1, "audit": 2, "later": 3}
STORES = {"one process, one shard": (1, 1), "two workers, four shards": (4, 2)}
TOPICS = ["fruit.sweet", "food.healthy"]
PLACES = ("fruit", "food", "mail", "audit")


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    shards, workers = STORES[request.param]
    with a_store(tmp_path_factory.mktemp("copies") / "store", shards, workers, NAMES if shards > 1 else {}) as store:
        for queue in ("fruit", "food", "later"):
            ask(store, "PUT", f"/v1/queues/{queue}", {})
        for channel in ("mail", "audit"):
            ask(store, "PUT", f"/v1/channels/{channel}", {"topics": ["fruit.*"]})
        yield store


def ask(store: Store, method: str, target: str, document: Any = None) -> Any:
    response = store.request(method, target, None if document is None else json.dumps(document).encode())
    assert response.status in (200, 201, 204), response.body
    return response.json() if response.body else None


def published(store: Store) -> str:
    found: str = ask(store, "POST", "/v1/publish", {"topics": TOPICS, "message": "apples"})["id"]
    return found


def take(store: Store, queue: str) -> str:
    kind = "channels" if queue in ("mail", "audit") else "queues"
    (message,) = ask(store, "GET", f"/v1/{kind}/{queue}/messages?wait=20&consumer=of-{queue}")
    found: str = message["id"]
    return found


def finish(store: Store, queue: str, outcome: str = "success") -> None:
    confirmation = {"id": take(store, queue), "consumer": f"of-{queue}", "outcome": outcome}
    ask(store, "POST", "/v1/confirm", confirmation)


def wait(store: Store, *ids: str, until: str = "done", seconds: float = 0) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(store, "POST", "/v1/wait", {"ids": ids, "until": until, "wait": seconds})[
        "messages"
    ]
    return found


def begin_wait(connection: Connection, *ids: str, until: str = "done") -> None:
    body = json.dumps({"ids": ids, "until": until, "wait": WAIT_SECONDS_MAX}).encode()
    connection.send_request("POST", "/v1/wait", body=body)


def test_a_message_is_done_when_it_is_done_in_all_its_queues(store: Store) -> None:
    message = published(store)
    with store.connect(0) as waiting:
        begin_wait(waiting, message)
        for queue in PLACES[:-1]:
            finish(store, queue)
            assert wait(store, message) == []
        finish(store, PLACES[-1])
        (entry,) = waiting.read_response().json()["messages"]
    assert (entry["id"], entry["outcome"], entry["consumer"]) == (message, "success", "of-audit")
    assert wait(store, message) == [entry]


@pytest.mark.parametrize("queue", PLACES)
def test_a_message_that_is_invalid_in_one_of_its_queues_has_failed(store: Store, queue: str) -> None:
    message = published(store)
    for each in PLACES:
        finish(store, each, "invalid" if each == queue else "success")
    (entry,) = wait(store, message, seconds=20)
    assert (entry["outcome"], entry["consumer"]) == ("invalid", f"of-{queue}")


@pytest.mark.parametrize("queue", PLACES)
def test_a_message_is_taken_when_one_of_its_queues_has_delivered_it(store: Store, queue: str) -> None:
    message = published(store)
    assert wait(store, message, until="taken") == []
    with store.connect(store.workers - 1) as waiting:
        begin_wait(waiting, message, until="taken")
        finish(store, queue)
        (entry,) = waiting.read_response().json()["messages"]
    assert (entry["id"], entry["consumer"]) == (message, f"of-{queue}")
    for each in PLACES:
        if each != queue:
            finish(store, each)


def test_of_several_messages_the_first_that_is_done_everywhere_is_the_answer(store: Store) -> None:
    first, second = published(store), published(store)
    with store.connect(0) as waiting:
        begin_wait(waiting, second, first)
        for queue in ("mail", "food", "audit", "fruit"):
            finish(store, queue)
        (entry,) = waiting.read_response().json()["messages"]
        assert entry["id"] == first
    for queue in PLACES:
        finish(store, queue)
    assert {each["id"] for each in wait(store, first, second, seconds=20)} == {first, second}


def test_a_message_that_was_moved_is_done_when_its_copies_are(store: Store) -> None:
    message = published(store)
    assert ask(store, "POST", "/v1/redrive", {"from": "fruit", "to": "later"})["moved"] == 1
    with store.connect(0) as waiting:
        begin_wait(waiting, message)
        finish(store, "later")
        for queue in ("food", "mail"):
            finish(store, queue)
            assert wait(store, message) == []
        finish(store, "audit")
        (entry,) = waiting.read_response().json()["messages"]
    assert (entry["id"], entry["outcome"], entry["consumer"]) == (message, "success", "of-audit")


def test_there_is_one_document_of_a_message_and_all_its_copies(store: Store) -> None:
    message = published(store)
    taken = {queue: take(store, queue) for queue in PLACES}
    document = ask(store, "GET", f"/v1/messages/{message}")
    assert {place["queue"]: place["id"] for place in document["places"]} == taken
    assert (document["state"], document["message"], document["topics"]) == ("F", "apples", TOPICS)
    assert "".join(event["state"] for event in document["events"]) == "LQQQQFFFF"
    referred = {event["queue"]: (event.get("to_queue"), event.get("to_id")) for event in document["events"][2:5]}
    assert referred == dict.fromkeys(("food", "mail", "audit"), ("fruit", message))
    for queue in PLACES[:-1]:
        ask(store, "POST", "/v1/confirm", {"id": taken[queue], "consumer": f"of-{queue}"})
    document = ask(store, "GET", f"/v1/messages/{message}")
    assert (document["state"], document["completed"], document["confirmedCount"]) == ("F", None, 3)
    assert (document["queued"], document["archived"]) == (True, False)
    ask(store, "POST", "/v1/confirm", {"id": taken["audit"], "consumer": "of-audit"})
    document = ask(store, "GET", f"/v1/messages/{message}?until=done&wait=20")
    assert (document["state"], document["confirmedCount"], document["archived"]) == ("X", 4, True)
    assert document["completed"] == document["modified"]
    assert document["processed"] < document["modified"]
    assert {each["consumerId"]: each["queue"] for each in document["consumed"]} == {f"of-{q}": q for q in PLACES}
    copy = ask(store, "GET", f"/v1/messages/{taken['audit']}")
    assert (copy["id"], copy["message"], [place["queue"] for place in copy["places"]]) == (
        taken["audit"],
        "apples",
        ["audit"],
    )


def test_a_document_says_that_it_is_not_complete_while_a_shard_cannot_be_asked(tmp_path: Path) -> None:
    with a_store(tmp_path / "store", 4, 2, NAMES) as store:
        for queue in ("fruit", "food"):
            ask(store, "PUT", f"/v1/queues/{queue}", {})
        message, copy = published(store), take(store, "food")
        whole = store.request("GET", f"/v1/messages/{message}", worker=0).json()
        store.run(away(store, 1))
        partial = store.request("GET", f"/v1/messages/{message}", worker=0).json()
        refused = store.request(
            "POST", "/v1/wait", json.dumps({"ids": [message], "until": "taken"}).encode(), worker=0
        )
    assert (whole["complete"], partial["complete"]) == (True, False)
    assert [place["id"] for place in whole["places"]] == [message, copy]
    assert [place["id"] for place in partial["places"]] == [message]
    assert (refused.status, refused.json()["code"]) == (503, "unavailable")
