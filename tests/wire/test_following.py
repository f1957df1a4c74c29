"""Senders that follow their messages hear of everything that happens to them, once and in order, also while the
shards of the messages move to other nodes and when the nodes that have them die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import pytest

from penstock.server.shards.shard_map import ShardMap
from tests.support.broker import Broker
from tests.support.nodes import move_all, nodes_on, serves_all, until
from tests.support.postgres import Postgres
from tests.support.ws_client import WsClient

SHARDS = 2
DELIVERIES = 60  # Of each message, until it is finished.
NOTICES = {"F": "assign", "R": "retry", "S": "finish"}


def queue_in(shard: int) -> str:
    return next(name for number in range(99) if ShardMap(SHARDS).of_name(name := f"life-{number}") == shard)


class Sender:
    """Posts a message to each of some queues, and follows them to their ends."""

    def __init__(self, broker: Broker, queues: list[str]) -> None:
        self._queues = queues
        self._client = WsClient(broker.http)
        self._client.hear()
        wanted = ["sync", "assign", "retry", "finish"]
        for label, queue in enumerate(queues):
            self._client.say({"type": "post", "queue": queue, "message": "m", "notify": wanted, "label": label})
            notice = self._client.hear()
            assert (notice["label"], notice["notice"]) == (label, "sync"), notice

    def lives(self) -> dict[str, list[str]]:
        """What was heard of each queue's message, until all are finished."""
        heard: dict[str, list[str]] = {queue: [] for queue in self._queues}
        while not all(notices[-1:] == ["finish"] for notices in heard.values()):
            answer = self._client.hear(60)
            assert answer["type"] == "notice", answer
            heard[self._queues[answer["label"]]].append(answer["notice"])
        self._client.close()
        return heard


class Consumer(Thread):
    """Takes the message of a queue again and again, gives it back, and finishes it when it is to stop. Requests that
    are lost or refused are sent again."""

    def __init__(self, broker: Broker, queue: str) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._queue = queue
        self.deliveries = 0
        self.is_over = Event()

    def run(self) -> None:
        while not self.is_over.is_set() or self.deliveries < DELIVERIES:
            self._take("retry")
        while not self._take("success"):
            pass

    def _take(self, outcome: str) -> bool:
        """Whether it was taken, and what became of it is known."""
        with suppress(OSError, EOFError, AssertionError):  # What has the queue is gone.
            taken = self._broker.request("GET", f"/v1/queues/{self._queue}/messages?consumer=c&wait=1")
            for message in taken.json() if taken.status == 200 else ():
                self.deliveries += 1
                said = json.dumps({"id": message["id"], "outcome": outcome, "consumer": "c"}).encode()
                return self._broker.request("POST", "/v1/confirm", body=said).status == 200
        return False


def logged(broker: Broker, queue: str) -> list[str]:
    """The same life, as the Event Log has it."""
    events = map(json.loads, broker.request("GET", f"/v1/events?queue={queue}").body.splitlines())
    return [NOTICES[event["state"]] for event in events if event["state"] in NOTICES]


@pytest.fixture
def store(postgres: Postgres) -> str:
    return postgres.new_store(SHARDS)


@pytest.fixture
def nodes(store: str, tmp_path: Path) -> Iterator[list[Broker]]:
    with nodes_on(store, tmp_path, 2, "store_lease_seconds=12") as started:
        yield started


def begin(asked: Broker, served: Broker) -> tuple[Sender, list[Consumer], list[str]]:
    queues = [queue_in(shard) for shard in range(SHARDS)]
    for queue in queues:
        created = asked.request("PUT", f"/v1/queues/{queue}", body=b'{"visibility_timeout": 1}')
        assert created.status == 201, created
    sender = Sender(asked, queues)
    consumers = [Consumer(served, queue) for queue in queues]
    for consumer in consumers:
        consumer.start()
    return sender, consumers, queues


def go_on(consumers: list[Consumer]) -> None:
    """Wait until each of them gets its message again."""
    wanted = [consumer.deliveries + 1 for consumer in consumers]
    until(lambda: all(each.deliveries >= least for each, least in zip(consumers, wanted, strict=True)))


def finish(consumers: list[Consumer]) -> None:
    for consumer in consumers:
        consumer.is_over.set()
    for consumer in consumers:
        consumer.join(60)
        assert not consumer.is_alive()


def test_a_sender_hears_of_everything_while_the_shard_of_its_message_moves(nodes: list[Broker], store: str) -> None:
    asked, other = nodes
    move_all(store, other, asked)
    sender, consumers, queues = begin(asked, other)
    for source, target in [(asked, other), (other, asked), (asked, other)]:
        move_all(store, source, target)
        go_on(consumers)
    finish(consumers)
    assert sender.lives() == {queue: logged(asked, queue) for queue in queues}


def test_a_sender_hears_of_everything_after_the_node_of_its_message_was_killed(nodes: list[Broker]) -> None:
    asked, other = nodes
    sender, consumers, queues = begin(asked, asked)
    go_on(consumers)
    other.kill()
    until(lambda: serves_all(asked))
    go_on(consumers)
    finish(consumers)
    assert sender.lives() == {queue: logged(asked, queue) for queue in queues}
