"""The table of names, from outside: refused loudly at its limit, given back when nobody uses a name, never lost."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from penstock.pipeline.source.broker import BrokerLog
from penstock.pipeline.source.files import FileLog
from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Response
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient

FULL = (
    "name limit reached (2 content types, senders, objects, sets of topics and consumers are in use);"
    " delete messages or raise names.max"
)


def publish(broker: Broker, content_type: str, body: bytes = b"x") -> Response:
    return broker.request("POST", "/messages/work", {"Content-Type": content_type}, body)


def delete_next(broker: Broker) -> str | None:
    """Take a message away; its content type."""
    message = broker.request("GET", "/messages/work")
    assert message.status == 200
    assert broker.request("DELETE", f"/messages/{message.header('X-MQS-MESSAGE-ID')}").status == 204
    return message.header("Content-Type")


def metric(broker: Broker, name: str) -> float:
    lines = broker.request("GET", "/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def events(broker: Broker) -> list[dict[str, Any]]:
    return [json.loads(line) for line in broker.request("GET", "/v1/events?state=L").body.splitlines()]


def a_full_broker(start_broker: StartBroker, *settings: str) -> Broker:
    broker = start_broker("names.max=2", *settings)
    broker.create_queue("work")
    for number in (1, 2):
        assert publish(broker, f"type/{number}").status == 201
    return broker


def test_every_dialect_refuses_a_name_that_there_is_no_room_for(start_broker: StartBroker) -> None:
    broker = a_full_broker(start_broker)
    refused = publish(broker, "type/3")
    assert (refused.status, refused.json()) == (503, {"error": FULL, "code": "name_limit"})
    assert refused.header("Retry-After") == "1"
    refused = broker.request("POST", "/v1/publish", body=b'{"topics":["work.new"],"message":"x"}')
    assert (refused.status, refused.json()) == (503, {"error": FULL, "code": "name_limit"})
    refused = broker.request("POST", "/post", body=b'{"messages":{"work":["x"]},"sender":"new"}')
    assert (refused.status, refused.json()) == (503, {"_error": f"messages.work: {FULL}"})
    refused = broker.request("GET", "/v1/queues/work/messages?consumer=new")
    assert (refused.status, refused.json()) == (503, {"error": FULL, "code": "name_limit"})
    with LineClient(broker.lines) as client:
        reply = client.ask(cmd="PUB", qname="work", message="x")
        assert (reply["cmd"], reply["err"]) == ("nok", "TOO_MANY_NAMES")
        assert reply["detail"] == FULL
    assert (metric(broker, "penstock_names"), metric(broker, "penstock_names_max")) == (2, 2)
    with WsClient(broker.http) as client:
        assert client.hear()["type"] == "hello"
        reply = client.ask(type="fetch", queue="work", label=7)  # Its consumers have no names.
        assert (reply["type"], reply["body"]) == ("message", "x")
        assert client.ask(type="finish", queue="work", sequence=1, label=8, response="sync")["notice"] == "finish"
    assert publish(broker, "type/1").status == 201
    assert [delete_next(broker) for _ in range(2)] == ["type/2", "type/1"]


def test_names_of_messages_that_are_gone_make_room_for_others(start_broker: StartBroker) -> None:
    broker = a_full_broker(start_broker)
    for number in range(3, 7):
        assert delete_next(broker) == f"type/{number - 2}"
        assert publish(broker, f"type/{number}").status == 503
        assert broker.wait_until_logged("names_swept")["names"] == 1
        assert publish(broker, f"type/{number}").status == 201
        assert metric(broker, "penstock_names") == 2
    broker.kill()
    broker.start()
    assert [delete_next(broker) for _ in range(2)] == ["type/5", "type/6"]


def test_the_event_log_still_tells_names_that_were_forgotten(start_broker: StartBroker) -> None:
    broker = a_full_broker(start_broker)
    assert [delete_next(broker), delete_next(broker)] == ["type/1", "type/2"]
    assert publish(broker, "type/3").status == 503
    assert broker.wait_until_logged("names_swept")["names"] == 0
    assert publish(broker, "type/3").status == 201
    expected = ["type/1", "type/2", "type/3"]
    assert [event["content_type"] for event in events(broker)] == expected
    for stop in (broker.kill, broker.stop):  # Then from the log, and from a snapshot that knows them no more.
        stop()
        broker.start()
        assert [event["content_type"] for event in events(broker)] == expected
    with closing(BrokerLog(f"http://{broker.http[0]}:{broker.http[1]}")) as log:
        log.extent()
        assert log.names().texts == {1: "type/1", 2: "type/2", 3: "type/3"}
        assert FileLog(broker.data).names() == log.names()


def test_a_name_is_told_after_its_definition_has_left_the_log(start_broker: StartBroker) -> None:
    settings = ("log.segment_bytes=65536", "log.snapshot_bytes=65536", "log.retention_seconds=0")
    broker = a_full_broker(start_broker, *settings, "log.retention_bytes=131072")
    assert [delete_next(broker), delete_next(broker)] == ["type/1", "type/2"]
    while not broker.request("GET", "/v1/log").json()["earliest"]:
        assert publish(broker, "type/2", b"x" * 4000).status == 201
        assert delete_next(broker) == "type/2"
    assert publish(broker, "type/3").status == 503
    assert broker.wait_until_logged("names_swept")["names"] == 0
    broker.kill()
    broker.start()
    assert {event["content_type"] for event in events(broker)} == {"type/2"}
    assert broker.request("GET", "/v1/log").json()["texts"]["2"] == "type/2"
    broker.stop()
    assert FileLog(broker.data).names().texts[2] == "type/2"
