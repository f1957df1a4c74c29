"""Publishes with an idempotency key over HTTP, through restarts and kill -9."""

from __future__ import annotations

import json
from typing import Any

from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Response
from tests.wire.test_search import search
from tests.wire.test_topics import call, channel, letters, take


def post(broker: Broker, key: str, document: Any, target: str = "/v1/publish") -> Response:
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    return broker.request("POST", target, headers, json.dumps(document).encode())


def again(broker: Broker, key: str, document: Any, target: str = "/v1/publish") -> Any:
    """The answer to a request that was answered before."""
    answer = post(broker, key, document, target)
    assert (answer.status, answer.header("Idempotent-Replay")) == (201, "true")
    return answer.json()


def test_a_message_to_several_queues_and_channels_is_there_once_in_each(broker: Broker) -> None:
    channel(broker, "once-channel", "once-a.*")
    document = {"topics": ["once-a.x", "once-b.y"], "message": "m"}
    first = post(broker, "several", document).json()
    assert again(broker, "several", document) == first
    assert (first["queues"], first["channels"]) == (["once-a", "once-b"], ["once-channel"])
    for where in ("queues/once-a", "queues/once-b", "channels/once-channel"):
        assert len(take(broker, where, max=9)) == 1


def test_an_unchanged_message_is_answered_as_unchanged_again(broker: Broker) -> None:
    document = {"topics": ["once-same"], "key": "1", "message": "m"}
    states = [post(broker, key, document).json()["state"] for key in ("same 1", "same 2", "same 1", "same 2")]
    assert states == ["Q", "U", "Q", "U"]
    assert letters(broker, "once-same") == "LQLU"


def test_a_plain_body_is_another_request_with_another_content_type(broker: Broker) -> None:
    target, body = "/v1/publish?topic=once-plain", b"{}"
    answers = [
        broker.request("POST", target, {"Idempotency-Key": "plain", "Content-Type": content_type}, body)
        for content_type in ("text/plain", "text/plain", "application/x-mine")
    ]
    assert [answer.status for answer in answers] == [201, 201, 422]
    assert len(take(broker, "queues/once-plain", max=9)) == 1


def test_requests_that_arrive_together_with_one_key_store_one_message(broker: Broker) -> None:
    """The second is decided while the first is not durable yet."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": "together"}
    body = b'{"topics": ["once-pair"], "message": 1}'
    with broker.connect() as one, broker.connect() as other:
        for connection in (one, other, one):
            connection.send_request("POST", "/v1/publish", headers, body)
        answers = [connection.read_response() for connection in (one, other, one)]
    assert len({answer.body for answer in answers}) == 1
    assert sorted([answer.header("Idempotent-Replay") or "" for answer in answers]) == ["", "true", "true"]
    assert len(take(broker, "queues/once-pair", max=9)) == 1


def test_a_client_that_got_no_answer_before_a_kill_gets_the_same_ids_after_it(start_broker: StartBroker) -> None:
    broker = start_broker()
    assert call(broker, "PUT", "/v1/queues/once-kill").status == 201
    document = [{"topics": ["once-kill"], "message": number} for number in range(20)]
    headers = {"Content-Type": "application/json", "Idempotency-Key": "kill"}
    with broker.connect() as connection:
        connection.send_request("POST", "/v1/publish", headers, json.dumps(document).encode())
        while not (stored := search(broker, queue="once-kill")):  # An answer means that the messages are durable.
            pass
        broker.kill()
    broker.start()
    assert [receipt["id"] for receipt in again(broker, "kill", document)] == [each["id"] for each in stored]
    assert len(take(broker, "queues/once-kill", max=100)) == 20


def test_keys_outlive_a_clean_restart_and_the_snapshot_it_writes(start_broker: StartBroker) -> None:
    broker = start_broker("publish.idempotency_keys_max=2")
    receipts = [post(broker, f"restart {number}", {"message": number}).json() for number in range(3)]
    broker.stop()
    broker.start()
    assert b"penstock_idempotency_keys 2.0" in broker.request("GET", "/metrics").body
    assert again(broker, "restart 2", {"message": 2}) == receipts[2]
    forgotten = post(broker, "restart 0", {"message": 0})
    assert forgotten.header("Idempotent-Replay") is None
    assert forgotten.json()["id"] != receipts[0]["id"]


def test_readers_of_the_event_log_see_the_messages_and_not_the_key(broker: Broker) -> None:
    post(broker, "secret key", {"topics": ["once-seen"], "message": "m"})
    assert b"secret key" not in broker.request("GET", "/v1/events").body
    assert letters(broker, "once-seen") == "LQ"
