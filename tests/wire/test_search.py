"""Searching a live broker: pages that stay right, filters that read, and clients beside it that notice nothing."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.event_history import events, make_queue, publish, settle
from tests.support.http_client import Connection
from tests.wire.test_topics import channel
from tests.wire.test_topics import publish as publish_to_topics

Row = dict[str, Any]


def ask(broker: Broker, target: str, **parameters: Any) -> Row:
    answer = broker.request("GET", f"{target}?{urlencode(parameters)}")
    assert answer.status == 200, answer
    found: Row = answer.json()
    return found


def search(broker: Broker, **parameters: Any) -> list[Row]:
    """All pages."""
    found: list[Row] = []
    while True:
        page = ask(broker, "/v1/search", **parameters)
        found += page["messages"]
        if page["next"] is None:
            return found
        parameters["cursor"] = page["next"]


def test_a_search_finds_what_queues_hold_and_touches_nothing(broker: Broker) -> None:
    make_queue(broker, "looked-at")
    publish(broker, "looked-at", b"one", b"\xff two", b"three")
    before = events(broker, "queue=looked-at")
    found = search(broker, queue="looked-at")
    assert [message["sequence"] for message in found] == [1, 2, 3]
    assert (found[0]["message"], found[1]["message_base64"], found[2]["message"]) == ("one", "/yB0d28=", "three")
    assert found[0] | {"id": "", "created": "", "visible_at": ""} == {
        "id": "",
        "queue": "looked-at",
        "sequence": 1,
        "status": "ready",
        "state": "Q",
        "queued": True,
        "topics": [],
        "topicCount": 0,
        "object": None,
        "mimeType": "text/plain",
        "sender": None,
        "priority": 0,
        "created": "",
        "visible_at": "",
        "expires_at": None,
        "receives": 0,
        "consumer": None,
        "message": "one",
    }
    assert events(broker, "queue=looked-at") == before
    received = broker.request("GET", "/messages/looked-at")
    assert received.header("X-MQS-MESSAGE-RECEIVES") == "1"
    assert received.header("X-MQS-MESSAGE-ID") == found[0]["id"]


def test_pages_are_cut_by_the_limit_and_go_on(broker: Broker) -> None:
    make_queue(broker, "paged")
    publish(broker, "paged", *[b"%d" % number for number in range(25)])
    for limit in (1, 7, 25, 1000):
        found = search(broker, queue="paged", limit=limit)
        assert [message["message"] for message in found] == [str(number) for number in range(25)]
    first = ask(broker, "/v1/search", queue="paged", limit=10)
    for message in settle(broker, "paged").messages()[5:15]:
        broker.request("DELETE", f"/messages/{message.header('X-MQS-MESSAGE-ID')}")
    publish(broker, "paged", b"25")
    rest = search(broker, queue="paged", limit=10, cursor=first["next"], bodies="false")
    assert [message["sequence"] for message in rest] == [*range(16, 27)]


def test_a_page_is_cut_where_its_bodies_are_too_much(broker: Broker) -> None:
    make_queue(broker, "heavy")
    for number in range(6):
        publish(broker, "heavy", b"%d" % number + b"x" * 1_000_000)
    page = ask(broker, "/v1/search", queue="heavy")
    assert [message["message"][0] for message in page["messages"]] == ["0", "1", "2", "3"]
    assert [message["message"][0] for message in search(broker, queue="heavy")] == list("012345")
    assert len(ask(broker, "/v1/search", queue="heavy", bodies="false")["messages"]) == 6


@pytest.mark.parametrize(
    ("state", "expected"), [("ready", "bc"), ("leased", "a"), ("F", "a"), ("delayed,leased", "ad")]
)
def test_states_choose(broker: Broker, state: str, expected: str) -> None:
    name = f"states-{state}"
    make_queue(broker, name)
    publish(broker, name, b"a", b"b", b"c")
    broker.request("GET", f"/messages/{name}")
    broker.request("PATCH", f"/v1/queues/{name}", body=b'{"message_delay": 60}')
    publish(broker, name, b"d")
    assert "".join(message["message"] for message in search(broker, queue=name, state=state)) == expected


def test_text_is_looked_for_in_bodies_also_after_a_restart(start_broker: StartBroker) -> None:
    broker = start_broker("log.segment_bytes=65536")
    make_queue(broker, "texts")
    for start in range(0, 2000, 100):
        publish(
            broker, "texts", *[b"%d needle" % n if n % 400 == 7 else b"%d hay" % n for n in range(start, start + 100)]
        )
    expected = [f"{number} needle" for number in (7, 407, 807, 1207, 1607)]
    for _ in range(2):
        assert [message["message"] for message in search(broker, queue="texts", text="needle", limit=2)] == expected
        assert len(search(broker, queue="texts", text="needle", bodies="false")) == 5
        assert search(broker, queue="texts", text="pin") == []
        broker.stop()
        broker.start()


def test_times_choose_by_when_a_message_was_logged(broker: Broker) -> None:
    make_queue(broker, "times")
    publish(broker, "times", b"early")
    publish(broker, "times", b"late")
    early, late = search(broker, queue="times")
    assert [m["message"] for m in search(broker, queue="times", since=late["created"])] == ["late"]
    assert [m["message"] for m in search(broker, queue="times", until=late["created"])] == ["early"]
    assert search(broker, queue="times", since=early["created"], until=early["created"]) == []


def test_what_is_scheduled_is_listed_by_time(broker: Broker) -> None:
    make_queue(broker, "planned")
    for delay in (300, 100, 200, 0):
        broker.request("PATCH", "/v1/queues/planned", body=b'{"message_delay": %d}' % delay)
        publish(broker, "planned", b"%d" % delay)
    first = ask(broker, "/v1/schedule", queue="planned", limit=2)
    assert [message["message"] for message in first["messages"]] == ["100", "200"]
    rest = ask(broker, "/v1/schedule", queue="planned", limit=2, cursor=first["next"])
    assert [message["message"] for message in rest["messages"]] == ["300"]
    assert rest["next"] is None
    everywhere = ask(broker, "/v1/schedule", bodies="false", limit=1000)["messages"]
    times = [message["visible_at"] for message in everywhere]
    assert times == sorted(times)
    assert len([message for message in everywhere if message["queue"] == "planned"]) == 3


@pytest.mark.parametrize(
    ("target", "status", "error"),
    [
        ("/v1/search?queue=not-there", 404, "does not exist"),
        ("/v1/schedule?queue=not-there", 404, "does not exist"),
        ("/v1/search?state=lost", 400, "state must be one or more of"),
        ("/v1/search?limit=0", 400, "limit"),
        ("/v1/search?cursor=bogus", 400, "cursor"),
        ("/v1/schedule?cursor=MS4y", 400, "cursor"),
        ("/v1/search?topic=a&topic=b", 400, "topic is given more than once"),
        ("/v1/search?since=yesterday", 400, "since"),
        ("/v1/search?colour=red", 400, "colour"),
    ],
)
def test_wrong_questions_are_refused(broker: Broker, target: str, status: int, error: str) -> None:
    answer = broker.request("GET", target)
    assert (answer.status, error in answer.json()["error"]) == (status, True), answer


def test_a_long_search_lets_others_have_their_turn(start_broker: StartBroker) -> None:
    """If it did not, one of them would wait for as long as the search takes, each time."""
    broker = start_broker()
    make_queue(broker, "deep")
    with broker.connect() as connection:
        for _ in range(30):
            document = json.dumps({"sender": "me", "messages": {"crowd": ["x"] * 10_000}}).encode()
            connection.send_request("POST", "/post", body=document)
        for _ in range(30):
            assert connection.read_response().status == 200
        with broker.connect() as searching:
            assert min(longest_wait(connection, searching) for _ in range(10)) < 0.5


def longest_wait(connection: Connection, searching: Connection) -> float:
    """How long a request waited at most that came during a search, as a share of the time of the search."""
    began, longest = time.monotonic(), 0.0
    searching.send_request("GET", "/v1/search?queue=crowd&state=Q,R&until=5&bodies=false")
    while not searching.readable():
        asked = time.monotonic()
        assert connection.request("GET", "/health").status == 200
        longest = max(longest, time.monotonic() - asked)
    assert searching.read_response().status == 200
    return longest / (time.monotonic() - began)


def test_topics_are_found_in_queues_and_channels_also_after_a_kill(start_broker: StartBroker) -> None:
    broker = start_broker()
    channel(broker, "all-fruit", "fruit.*")
    sent = [
        {"topics": ["fruit.sweet"], "object": "apple", "key": "1", "message": "a"},
        {"topics": ["fruit.sour", "food.healthy"], "object": "lemon", "key": "2", "message": "b"},
        {"topics": ["food.healthy"], "object": "bread", "key": "2", "message": "c"},
        {"topics": ["fruit"], "object": "apple", "key": "3", "message": "d"},
    ]
    for document in sent:
        publish_to_topics(broker, document)

    def found(**parameters: Any) -> list[tuple[str, str]]:
        return [(message["queue"], message["message"]) for message in search(broker, **parameters)]

    for _ in range(2):
        assert found(topic="fruit.*") == [
            ("all-fruit", "a"),
            ("all-fruit", "b"),
            ("fruit", "a"),
            ("fruit", "b"),
            ("food", "b"),
        ]
        assert found(topic="fruit.*", queue="food") == [("food", "b")]
        assert found(topic="fruit", limit=1) == [("fruit", "d")]
        assert found(object="apple", queue="fruit") == [("fruit", "a"), ("fruit", "d")]
        assert found(key="2") == [("all-fruit", "b"), ("fruit", "b"), ("food", "b"), ("food", "c")]
        assert found(key="2", object="bread") == [("food", "c")]
        assert found(topic="fruit.*", text="a", queue="all-fruit") == [("all-fruit", "a")]
        broker.kill()
        broker.start()
