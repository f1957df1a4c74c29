"""Clients that close their side while they wait, as one does that was killed: against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker import Broker
from tests.support.http_client import encode_request
from tests.support.line_client import LineClient
from tests.wire.test_lines import wait_for_metric
from tests.wire.test_topics import call, letters, publish

SOON_SECONDS = 15.0  # Much less than anybody here waits.


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with nobody else on it: those who wait can be counted."""
    own = Broker(tmp_path_factory.mktemp("quiet-broker") / "data").start()
    yield own
    own.stop()


def wait_for_waiting(broker: Broker, many: int) -> None:
    wait_for_metric(broker, "penstock_waiting_receives", many, SOON_SECONDS)


def make_queue(broker: Broker, name: str, **settings: Any) -> None:
    assert call(broker, "PUT", f"/v1/queues/{name}", settings).status == 201


def long_poll(kind: str, queue: str) -> bytes:
    if kind == "mqs":
        return encode_request("GET", f"/messages/{queue}", {"X-MQS-MAX-WAIT-TIME": "20"})
    if kind == "nq":
        wanted = {"receiver": "r", "timeout": 20, "queues": {queue: {}}}
        return encode_request("POST", "/pull", body=json.dumps(wanted).encode())
    if kind == "result":
        return encode_request("GET", f"/v1/results/{queue}/1?receiver=r&timeout=20")
    return encode_request("GET", f"/v1/queues/{queue}/messages?wait=20&consumer=c")


EMPTY_STATUS = {"mqs": 204, "native": 200, "several": 200, "nq": 404, "result": 404}


@pytest.mark.parametrize("kind", EMPTY_STATUS)
def test_a_client_that_was_killed_while_it_waited_takes_nothing_along(quiet: Broker, kind: str) -> None:
    queue = f"killed-{kind}"
    make_queue(quiet, queue, retries=1, keep="all", confirmations=2 if kind == "several" else 1)
    if kind == "result":
        publish(quiet, {"object": queue, "message": "asked"})
    with quiet.connect() as killed:
        killed.send(long_poll(kind, queue))
        wait_for_waiting(quiet, 1)
    wait_for_waiting(quiet, 0)
    publish(quiet, {"object": queue, "message": "still here"})
    assert set(letters(quiet, queue)) == {"L", "Q"}


@pytest.mark.parametrize("kind", EMPTY_STATUS)
def test_a_client_that_sends_no_more_waits_no_longer_and_is_told_so(quiet: Broker, kind: str) -> None:
    queue = f"half-{kind}"
    make_queue(quiet, queue, keep="all", confirmations=2 if kind == "several" else 1)
    if kind == "result":
        publish(quiet, {"object": queue, "message": "asked"})
    with quiet.connect() as connection:
        connection.send(long_poll(kind, queue))
        wait_for_waiting(quiet, 1)
        connection.shut_down_sending()
        wait_for_waiting(quiet, 0)
        answer = connection.read_response()
        assert (answer.status, answer.header("Connection")) == (EMPTY_STATUS[kind], "close")
        assert connection.read_to_end() == b""


def test_fire_and_forget_forgets_no_message_for_a_dead_client(quiet: Broker) -> None:
    assert call(quiet, "PUT", "/v1/channels/fleet", {"topics": ["fleet-root.*"], "confirm": False}).status == 201
    with quiet.connect() as killed:
        killed.send(encode_request("GET", "/v1/channels/fleet/messages?wait=20&consumer=dead"))
        wait_for_waiting(quiet, 1)
    wait_for_waiting(quiet, 0)
    publish(quiet, {"topics": ["fleet-root.x"], "message": "m"})
    assert letters(quiet, "fleet") == "Q"


def test_one_that_sends_everything_and_closes_its_side_gets_every_answer(quiet: Broker) -> None:
    """More requests than are handled at once: the last ones are read, and wait, when the side is closed."""
    make_queue(quiet, "pipeline")
    published = encode_request("POST", "/messages/pipeline", {"Content-Type": "text/plain"}, b"m")
    polled = encode_request("GET", "/messages/pipeline", {"X-MQS-MAX-WAIT-TIME": "20"})
    with quiet.connect() as connection:
        connection.send(published * 200 + polled * 202)
        connection.shut_down_sending()
        assert {connection.read_response().status for _ in range(200)} == {201}
        assert {connection.read_response().status for _ in range(200)} == {200}
        assert [connection.read_response().status for _ in range(2)] == [204, 204]
        assert connection.read_to_end() == b""


def test_a_sleeper_that_closes_its_side_is_forgotten(quiet: Broker) -> None:
    with LineClient(quiet.lines) as sleeper:
        assert sleeper.ask(cmd="SUB", qname="sleepy")["cmd"] == "oksub"
        assert sleeper.ask(cmd="ISLP", qname="sleepy")["cmd"] == "okslp"
        sleeper.shut_down_sending()
        assert sleeper.read_to_end() == b""
    wait_for_metric(quiet, "penstock_lines_connections", 0, SOON_SECONDS)
