"""A history for readers of the log: every kind of thing that can happen to a message without waiting for it."""

from __future__ import annotations

import json
import secrets
from typing import Any
from urllib.parse import quote

from tests.support.broker import Broker
from tests.support.http_client import Response, encode_multipart
from tests.support.waiting import wait_until

Row = dict[str, Any]


def events(broker: Broker, query: str = "", **headers: str) -> list[Row]:
    answer = broker.request("GET", f"/v1/events?{query}", headers)
    assert answer.status == 200, answer
    assert answer.header("Content-Type") == "application/x-ndjson"
    return [json.loads(line) for line in answer.body.splitlines()]


def make_queue(broker: Broker, name: str, **changed: Any) -> None:
    answer = broker.request("PUT", f"/v1/queues/{quote(name)}", body=json.dumps(changed).encode())
    assert answer.status == 201, answer


def publish(broker: Broker, name: str, *bodies: bytes) -> None:
    parts: list[tuple[dict[str, str], bytes]] = [({"Content-Type": "text/plain"}, body) for body in bodies]
    kind = {"Content-Type": "multipart/mixed; boundary=penstock-test"}
    answer = broker.request("POST", f"/messages/{quote(name)}", kind, encode_multipart(parts))
    assert answer.status in (200, 201), answer


def call(broker: Broker, target: str, document: Any) -> None:
    answer = broker.request("POST", target, body=json.dumps(document).encode())
    assert answer.status == 200, answer


def settle(broker: Broker, name: str) -> Response:
    return broker.request("GET", f"/messages/{quote(name)}", {"X-MQS-MAX-MESSAGES": "1000"})


def make_history(broker: Broker, rounds: int = 3) -> None:
    """Retries, dead letters, expiries, duplicates, results, odd names and odd bodies, and a queue that is removed."""
    make_queue(broker, "dead")
    policy = {"max_receives": 2, "dead_letter_queue": "dead"}
    make_queue(broker, "hopeless", visibility_timeout=0, redrive_policy=policy)
    make_queue(broker, "mortal", retention_timeout=0.01)
    make_queue(broker, 'odd "ñame"\\', message_deduplication=True)
    make_queue(broker, "gone")
    for number in range(rounds):
        publish(broker, "hopeless", b"%d" % number, secrets.token_bytes(20), b"")
        publish(broker, "mortal", b"short")
        publish(broker, 'odd "ñame"\\', b"\xff\x00 not text", "ünïcode\n".encode(), b"twice", b"twice")
        publish(broker, "gone", b"x")
        traced = {"X-TRACE-ID": "00000000-0000-4000-8000-000000000000", "Content-Type": "a/b"}
        broker.request("POST", "/messages/gone", traced, b"traced")
        for _ in range(3):
            settle(broker, "hopeless")
        for message in settle(broker, "dead").messages():
            assert broker.request("DELETE", f"/messages/{message.header('X-MQS-MESSAGE-ID')}").status == 204
        call(broker, "/post", {"sender": "me", "messages": {"kept": ["a", "b"]}})
        call(broker, "/pull", {"receiver": "you", "queues": {"kept": {"retry_num": 2}}})
        call(
            broker,
            "/pull",
            {"receiver": "you", "queues": {"kept": {"retry_num": 2}}, "results": {"kept": {2 * number + 1: "42"}}},
        )
    wait_until(lambda: "Z" in {event["state"] for event in events(broker, "queue=mortal")}, "an expiry")
    assert broker.request("DELETE", "/v1/queues/gone").status == 204
