"""Recurring schedules on a real broker, which is killed and started again."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.effort import LONG

KILLS = 60 if LONG else 5


def put(broker: Broker, name: str, **fields: Any) -> dict[str, Any]:
    answer = broker.request("PUT", f"/v1/schedules/{name}", body=json.dumps({"message": name, **fields}).encode())
    assert answer.status in (200, 201), answer
    document: dict[str, Any] = answer.json()
    return document


def shown(broker: Broker, name: str) -> dict[str, Any]:
    document: dict[str, Any] = broker.request("GET", f"/v1/schedules/{name}").json()
    return document


def take(broker: Broker, queue: str, count: int) -> list[dict[str, Any]]:
    """So many messages, as they come."""
    taken: list[dict[str, Any]] = []
    while len(taken) < count:
        answer = broker.request("GET", f"/v1/queues/{queue}/messages?max=100&wait=20")
        assert answer.status == 200, f"{answer}, after {taken}"
        taken += answer.json()
    return taken


def tick_of(message: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(message["timestamp"])


def test_each_tick_has_one_message_however_often_the_broker_is_killed(start_broker: StartBroker) -> None:
    broker = start_broker("log.segment_bytes=65536", "log.snapshot_bytes=65536")
    broker.create_queue("beats", visibility_timeout=3600)
    first = datetime.fromisoformat(put(broker, "beat", queue="beats", every=1, catch_up="all")["next_run"])
    put(broker, "merged", queue="beats", every=1)
    taken: list[dict[str, Any]] = []
    for _ in range(KILLS):
        taken += take(broker, "beats", 1)
        broker.kill()
        broker.start()
    while not (ran := [tick_of(each) for each in taken if each["message"] == "beat"]) or len(ran) < KILLS + 2:
        taken += take(broker, "beats", 1)
    assert ran == [first + timedelta(seconds=number) for number in range(len(ran))]
    merged = [tick_of(each) for each in taken if each["message"] == "merged"]
    assert merged == sorted(set(merged)), "no tick comes twice"
    found = shown(broker, "merged")
    assert found["runs"] + found["missed"] == (datetime.fromisoformat(found["next_run"]) - first).seconds


def test_those_who_wait_are_woken_by_a_tick(broker: Broker) -> None:
    broker.create_queue("woken")
    put(broker, "wakes", queue="woken", every=1)
    [message] = take(broker, "woken", 1)
    assert (message["message"], message["sender"]) == ("wakes", "schedule:wakes")
    assert broker.request("DELETE", "/v1/schedules/wakes").status == 204


@pytest.mark.parametrize("changes", [{"paused": True}, {"catch_up": "none"}, {"priority": 9}])
def test_a_change_leaves_a_message_byte_for_byte_as_it_is(broker: Broker, changes: dict[str, Any]) -> None:
    broker.create_queue("bytes")
    body = b'{"queue": "bytes", "cron": "@yearly", "message": { "b":1,\n"a": 1.50,  "b": 2 }}'
    assert broker.request("PUT", "/v1/schedules/exact", body=body).status == 201
    answer = broker.request("PATCH", "/v1/schedules/exact", body=json.dumps(changes).encode())
    assert answer.status == 200, answer
    assert broker.request("POST", "/v1/schedules/exact/run").status == 201
    received = broker.request("GET", "/messages/bytes")
    assert received.body == b'{ "b":1,\n"a": 1.50,  "b": 2 }'
    for path in ("/v1/schedules/exact", "/v1/queues/bytes"):
        assert broker.request("DELETE", path).status == 204


def test_a_page_of_long_schedules_ends_early_and_says_where_to_go_on(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("long")
    with broker.connect() as connection:
        for number in range(60):
            document = {"queue": "long", "cron": "@yearly", "message": "x" * 65_536}
            body = json.dumps(document).encode()
            assert connection.request("PUT", f"/v1/schedules/{number}", None, body).status == 201
    names: list[str] = []
    following: int | None = 0
    while following is not None:
        page = broker.request("GET", f"/v1/schedules?limit=1000&offset={following}").json()
        names += [each["name"] for each in page["schedules"]]
        following = page["next"]
    assert names == [str(number) for number in range(60)]
