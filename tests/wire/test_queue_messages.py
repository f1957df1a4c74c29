"""Messages to a queue by name, purges that stall nobody, and JSON bodies in every native answer."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.event_history import events, make_queue, publish
from tests.wire.test_documents import document
from tests.wire.test_search import search
from tests.wire.test_topics import call, take

JSON = {"Content-Type": "application/json"}


def post(broker: Broker, name: str, body: bytes, content_type: str = "application/json") -> str:
    answer = broker.request("POST", f"/messages/{name}", {"Content-Type": content_type}, body)
    assert answer.status == 201, answer
    message_id = answer.header("X-MQS-MESSAGE-ID")
    assert message_id
    return message_id


def everywhere(broker: Broker, name: str, message_id: str, **raw: str) -> list[Any]:
    """The body of a message in every native answer that has one; the last one takes it."""
    query = "&".join(f"{key}={value}" for key, value in raw.items())
    (found,) = search(broker, queue=name, **raw)
    told = broker.request("GET", f"/v1/messages/{message_id}?{query}").json()
    (logged,) = events(broker, f"queue={name}&state=L&{query}")
    stream = broker.request("GET", f"/v1/events?queue={name}&state=L&{query}", {"Accept": "text/event-stream"})
    sent = json.loads(stream.body.rpartition(b"data: ")[2])
    (taken,) = take(broker, f"queues/{name}", **raw)
    return [each["message"] for each in (found, told, told["events"][0], logged, sent, taken)]


@pytest.mark.parametrize(
    ("body", "content_type", "shown"),
    [
        (b'{"to": 1}', "application/json", {"to": 1}),
        (b'[1,\n {"a": null}]', "application/vnd.x+json; charset=utf-8", [1, {"a": None}]),
        (b'{"a": 1, "a": 2}', "application/json", '{"a": 1, "a": 2}'),
        (b"[NaN]", "application/json", "[NaN]"),
        (b"9007199254740993", "application/json", "9007199254740993"),
        (b'"text"', "application/json", '"text"'),
        (b"{", "application/json", "{"),
        (b'{"to": 1}', "text/plain", '{"to": 1}'),
    ],
)
def test_a_json_body_is_json_in_every_native_answer_and_text_where_that_would_lose_something(
    start_broker: StartBroker, body: bytes, content_type: str, shown: Any
) -> None:
    broker = start_broker()
    make_queue(broker, "json")
    message_id = post(broker, "json", body, content_type)
    assert everywhere(broker, "json", message_id) == [shown] * 6


def test_the_raw_form_is_the_text_that_was_stored(broker: Broker) -> None:
    make_queue(broker, "raw-json")
    message_id = post(broker, "raw-json", b'{"to":\n  1}')
    assert everywhere(broker, "raw-json", message_id, raw="true") == ['{"to":\n  1}'] * 6


def test_a_large_page_of_json_arrives_whole(broker: Broker) -> None:
    make_queue(broker, "large-page")
    bodies = [{"number": number, "padding": "ä" * 20_000} for number in range(20)]
    for start in (0, 10):
        answer = call(
            broker,
            "POST",
            "/v1/queues/large-page/messages",
            [{"message": body} for body in bodies[start : start + 10]],
        )
        assert answer.status == 201
    assert [message["message"] for message in search(broker, queue="large-page")] == bodies
    assert [message["message"] for message in take(broker, "queues/large-page", max=1000)] == bodies


def test_a_channel_takes_nothing_by_name(broker: Broker) -> None:
    assert call(broker, "PUT", "/v1/channels/by-name-channel", {"topics": ["by-name.*"]}).status == 201
    answer = call(broker, "POST", "/v1/queues/by-name-channel/messages", {"message": "x"})
    assert (answer.status, "channel" in answer.json()["error"]) == (409, True)


def test_a_list_that_is_wrong_in_one_place_is_stored_nowhere(broker: Broker) -> None:
    make_queue(broker, "by-name-list")
    answer = call(broker, "POST", "/v1/queues/by-name-list/messages", [{"message": "x"}, {"key": "k"}])
    assert (answer.status, answer.json()) == (400, {"error": "message 1: message is missing", "code": "bad_request"})
    assert take(broker, "queues/by-name-list") == []


def test_a_name_with_odd_characters_is_percent_decoded(broker: Broker) -> None:
    make_queue(broker, "by näme")
    assert call(broker, "POST", "/v1/queues/by%20n%C3%A4me/messages", {"message": "x"}).status == 201
    assert broker.request("DELETE", "/v1/queues/by%20n%C3%A4me/messages").json()["deleted"] == 1


def test_every_message_that_is_purged_has_a_d_event(broker: Broker) -> None:
    make_queue(broker, "purged")
    publish(broker, "purged", *[b"%d" % number for number in range(5)])
    take(broker, "queues/purged", max=2)
    assert broker.request("DELETE", "/v1/queues/purged/messages").json()["deleted"] == 5
    deleted = events(broker, "queue=purged&state=D")
    assert [(each["sequence"], each["receives"]) for each in deleted] == [(1, 1), (2, 1), (3, 0), (4, 0), (5, 0)]
    assert document(broker, deleted[0]["id"])["state"] == "D"
    publish(broker, "purged", b"new")
    assert [message["message"] for message in take(broker, "queues/purged", max=10)] == ["new"]


def test_a_purge_of_very_many_is_a_job_that_reports_its_progress_and_leaves_others_their_turn(
    start_broker: StartBroker,
) -> None:
    """A hundred thousand messages; while they go, another client is served."""
    broker = start_broker()
    count = 100_000
    make_queue(broker, "millions")
    make_queue(broker, "beside")
    with broker.connect() as connection:
        for _ in range(count // 10_000):
            body = json.dumps({"sender": "t", "messages": {"millions": ["x"] * 10_000}}).encode()
            assert connection.request("POST", "/post", JSON, body).status == 200
    answers: list[Any] = []
    purge = threading.Thread(target=lambda: answers.append(broker.request("DELETE", "/v1/queues/millions/messages")))
    purge.start()
    served, progress = 0, set()
    with broker.connect() as connection:
        while purge.is_alive():
            assert connection.request("POST", "/messages/beside", body=b"x").status == 201
            served += 1
            (job,) = connection.request("GET", "/v1/purges").json()["purges"] or [{"deleted": 0}]
            progress.add(job["deleted"])
    (answer,) = answers
    assert answer.status in (200, 202)
    job = answer.json()
    while job["state"] == "running":
        job = broker.request("GET", answer.header("Location")).json()
        progress.add(job["deleted"])
    assert (job["state"], job["deleted"]) == ("done", count)
    assert served >= 3
    assert len(progress) >= 3
    assert broker.request("GET", "/v1/queues/millions").json()["status"]["messages"] == 0


def test_a_purge_that_is_cut_short_by_a_kill_stays_done_as_far_as_it_came_and_can_be_asked_for_again(
    start_broker: StartBroker,
) -> None:
    broker = start_broker()
    count = 30_000
    make_queue(broker, "cut")
    with broker.connect() as connection:
        for _ in range(3):
            body = json.dumps({"sender": "t", "messages": {"cut": ["x"] * 10_000}}).encode()
            assert connection.request("POST", "/post", JSON, body).status == 200
        connection.send_request("DELETE", "/v1/queues/cut/messages")
        while broker.request("GET", "/v1/queues/cut").json()["status"]["messages"] == count:
            pass
        broker.kill()
    broker.start()
    left = broker.request("GET", "/v1/queues/cut").json()["status"]["messages"]
    assert left < count
    answer = broker.request("DELETE", "/v1/queues/cut/messages")
    again = answer.json()
    while again["state"] == "running":  # On a slow machine it takes longer than the request waits.
        again = broker.request("GET", f"/v1/purges/{again['job']}").json()
    assert (again["state"], again["deleted"]) == ("done", left)
    assert len(events(broker, "queue=cut&state=D")) == count
