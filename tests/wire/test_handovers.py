"""Clients that wait while the shards they wait on are handed over to another node: they are answered, or go on."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.shard_map import ShardMap
from tests.support.broker import Broker
from tests.support.http_client import Connection, Response
from tests.support.line_client import LineClient
from tests.support.nodes import move_all, nodes_on
from tests.support.postgres import Postgres
from tests.support.ws_client import WsClient

SHARDS = 2
READ_SECONDS_MAX = 60.0  # Longer than any of them waits.
EMPTY = (b"[]\n", b'{"messages":[]}\n')


def named(kind: str, shard: int) -> str:
    """The first such queue in a shard."""
    return next(name for number in range(99) if ShardMap(SHARDS).of_name(name := f"{kind}-{number}") == shard)


KINDS = ("mqs", "glovebox", "etzel", "nq", "wait", "native")
QUEUES = {kind: [named(kind, shard) for shard in range(SHARDS)] for kind in KINDS}


@pytest.fixture
def store(postgres: Postgres) -> str:
    return postgres.new_store(SHARDS)


@pytest.fixture
def nodes(store: str, tmp_path: Path) -> Iterator[list[Broker]]:
    with nodes_on(store, tmp_path, 2, "store_lease_seconds=12") as started:
        yield started


def publish(node: Broker, queue: str, body: str = "late") -> str:
    """The id of the message."""
    answer = node.request("POST", f"/messages/{queue}", body=body.encode())
    assert answer.status == 201, answer
    return str(answer.header("X-MQS-MESSAGE-ID"))


class Poll(Connection):
    """A request that waits, and is sent again if it is answered with nothing."""

    def __init__(self, node: Broker, method: str, target: str, body: bytes | None = None) -> None:
        super().__init__(node.http, READ_SECONDS_MAX)
        self._request = (method, target, {"X-MQS-MAX-WAIT-TIME": "20"}, body)
        self.send_request(*self._request)

    def result(self) -> Response:
        """The answer with something."""
        while (answer := self.read_response()).status in (204, 404, 503) or answer.body in EMPTY:
            self.send_request(*self._request)
        assert answer.status == 200, answer
        return answer


@pytest.mark.parametrize("is_there", [True, False], ids=["from its own node", "from another node to its own"])
def test_whoever_waits_when_its_shards_move_has_what_comes_afterwards(
    nodes: list[Broker], store: str, is_there: bool
) -> None:
    asked, other = nodes
    source, target = (asked, other) if is_there else (other, asked)
    move_all(store, target, source)
    for queues in QUEUES.values():
        for queue in queues:
            asked.create_queue(queue)
    with ExitStack() as stack:

        def poll(method: str, target: str, body: bytes | None = None) -> Poll:
            return stack.enter_context(Poll(asked, method, target, body))

        sent = [publish(other, queue) for queue in QUEUES["wait"]]
        polls = [poll("GET", f"/messages/{queue}") for queue in QUEUES["mqs"]]
        consumes = [poll("GET", f"/v1/queues/{queue}/messages?wait=20") for queue in QUEUES["native"]]
        pulled = {"receiver": "r", "timeout": 20, "queues": {queue: {} for queue in QUEUES["nq"]}}
        pull = poll("POST", "/pull", json.dumps(pulled).encode())
        wanted = json.dumps({"ids": sent, "until": "done", "wait": 20}).encode()
        wait = poll("POST", "/v1/wait", wanted)
        sleeper = stack.enter_context(LineClient(asked.lines))
        for queue in QUEUES["etzel"]:
            assert sleeper.ask(cmd="ISLP", qname=queue)["cmd"] == "okslp"
        glovebox = stack.enter_context(WsClient(asked.http))
        glovebox.hear()
        for label, queue in enumerate(QUEUES["glovebox"]):
            glovebox.say({"type": "fetch", "queue": queue, "label": label, "block_timeout": 20})
        move_all(store, source, target)
        for kind in ("mqs", "native", "etzel", "glovebox"):
            for queue in QUEUES[kind]:
                publish(other, queue)
        publish(other, QUEUES["nq"][1])
        for each in polls:
            assert each.result().body == b"late"
        for each in consumes:
            assert [message["message"] for message in each.result().json()] == ["late"]
        assert [each["message"] for each in pull.result().json()["messages"][QUEUES["nq"][1]]] == ["late"]
        heard: set[str] = set()
        while heard != set(QUEUES["etzel"]):
            heard.add(sleeper.hear()["qname"])
        bodies: dict[int, str] = {}
        while len(bodies) < SHARDS:
            answer = glovebox.hear()
            if answer["type"] == "message":
                bodies[answer["label"]] = answer["body"]
            else:
                again = {"queue": QUEUES["glovebox"][answer["label"]], "label": answer["label"], "block_timeout": 20}
                glovebox.say({"type": "fetch"} | again)
        assert bodies == {0: "late", 1: "late"}
        for queue, message in zip(QUEUES["wait"], sent, strict=True):
            assert asked.request("GET", f"/messages/{queue}").body == b"late"
            assert other.request("DELETE", f"/messages/{message}").status in (200, 204)
        assert {each["id"] for each in wait.result().json()["messages"]} <= set(sent)


@pytest.mark.parametrize("is_there", [True, False], ids=["from its own node", "from another node to its own"])
def test_a_stream_of_all_events_is_cut_off_when_shards_move_and_continued_without_a_gap(
    nodes: list[Broker], store: str, is_there: bool
) -> None:
    asked, other = nodes
    source, target = (asked, other) if is_there else (other, asked)
    move_all(store, target, source)
    for queue in QUEUES["mqs"]:
        asked.create_queue(queue)
        publish(other, queue, "early")
    found = asked.request("GET", "/v1/search?limit=10").json()["messages"]
    assert [each["message"] for each in found] == ["early"] * SHARDS
    first = asked.request("GET", "/v1/events?state=L").body.splitlines()
    cursor = json.loads(first[-1])["next"]
    stream = Follower(asked, cursor)
    move_all(store, source, target)
    for queue in QUEUES["mqs"]:
        publish(other, queue)
    assert sorted(stream.next_event()["queue"] for _ in QUEUES["mqs"]) == sorted(QUEUES["mqs"])
    stream.close()
    found = asked.request("GET", "/v1/search?limit=10").json()["messages"]
    assert len(found) == 2 * SHARDS


class Follower:
    """Follows the events of all shards, and continues where it was when a stream ends."""

    def __init__(self, node: Broker, cursor: str) -> None:
        self._node = node
        self._cursor = cursor
        self._connect()

    def _connect(self) -> None:
        self._connection = self._node.connect(READ_SECONDS_MAX)
        self._lines: deque[bytes] = deque()
        self._rest = b""
        head = self._connection.begin(f"/v1/events?follow=true&state=L&from={self._cursor}")
        assert head.status == 200, head

    def next_event(self) -> dict[str, Any]:
        while not self._lines:
            try:
                chunk = self._connection.read_chunk()
            except (OSError, AssertionError):
                chunk = b""  # It was cut off.
            if not chunk:
                self.close()
                self._connect()
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._lines.extend(filter(None, lines))
        event: dict[str, Any] = json.loads(self._lines.popleft())
        self._cursor = event["next"]
        return event

    def close(self) -> None:
        self._connection.close()
