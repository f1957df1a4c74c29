"""Senders that follow their messages hear of everything that happens to them, once and in order, also while the
shards of the messages move to other nodes, when the nodes that have them die, and when the messages are moved to
queues of other shards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from penstock.broker.shard_map import ShardMap
from tests.support.broker import Broker, StartBroker
from tests.support.nodes import move_all, nodes_on, serves_all, until
from tests.support.postgres import Postgres
from tests.support.ws_client import WsClient

SHARDS = 2
DELIVERIES = 60  # Of each message, until it is finished.
PAUSE_SECONDS = 0.01  # Before a message is delivered again: of its past, the newest 1,000 events are recalled.
NOTICES = {"F": "assign", "R": "retry", "S": "finish"}


def queue_in(shard: int, shards: int = SHARDS) -> str:
    return next(name for number in range(99) if ShardMap(shards).of_name(name := f"life-{number}") == shard)


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

    def lives(self) -> list[list[str]]:
        """What was heard of each message, until all are finished."""
        heard: list[list[str]] = [[] for _ in self._queues]
        while not all(notices[-1:] == ["finish"] for notices in heard):
            answer = self._client.hear(60)
            assert answer["type"] == "notice", answer
            heard[answer["label"]].append(answer["notice"])
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
                said: dict[str, Any] = {"id": message["id"], "outcome": outcome, "consumer": "c"}
                said |= {"delay": PAUSE_SECONDS} if outcome == "retry" else {}
                body = json.dumps(said).encode()
                return self._broker.request("POST", "/v1/confirm", body=body).status == 200
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
        created = asked.request("PUT", f"/v1/queues/{queue}", body=b'{"lease": 1}')
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
    assert sender.lives() == [logged(asked, queue) for queue in queues]


def test_a_sender_hears_of_everything_after_the_node_of_its_message_was_killed(nodes: list[Broker]) -> None:
    asked, other = nodes
    sender, consumers, queues = begin(asked, asked)
    go_on(consumers)
    other.kill()
    until(lambda: serves_all(asked))
    go_on(consumers)
    finish(consumers)
    assert sender.lives() == [logged(asked, queue) for queue in queues]


def take(broker: Broker, queue: str) -> str:
    (message,) = broker.request("GET", f"/v1/queues/{queue}/messages?consumer=c&wait=20").json()
    found: str = message["id"]
    return found


def confirm(broker: Broker, message: str, outcome: str) -> None:
    said = json.dumps({"id": message, "outcome": outcome, "consumer": "c"}).encode()
    assert broker.request("POST", "/v1/confirm", body=said).json()["discarded"] is False


def move(broker: Broker, source: str, target: str, messages: int = 1) -> None:
    said = json.dumps({"from": source, "to": target}).encode()
    assert broker.request("POST", "/v1/redrive", body=said).json()["moved"] == messages


@pytest.fixture
def workers(start_broker: StartBroker) -> tuple[Broker, list[str]]:
    """A broker with two workers, and a queue in each of its four shards."""
    broker, queues = (
        start_broker(flags=("--workers", "2", "--shards", "4")),
        [queue_in(shard, 4) for shard in range(4)],
    )
    for queue in queues:
        broker.create_queue(queue, visibility_timeout=3600)
    return broker, queues


def test_a_sender_hears_of_everything_while_its_message_is_moved_from_shard_to_shard(
    workers: tuple[Broker, list[str]],
) -> None:
    broker, queues = workers
    sender = Sender(broker, queues[:1])
    stays = [queues[0], queues[1], queues[3], queues[0], queues[2], queues[1], queues[0]]
    for number, queue in enumerate(stays):
        if number:
            move(broker, stays[number - 1], queue)
        confirm(broker, take(broker, queue), "retry")
    confirm(broker, take(broker, stays[-1]), "success")
    assert sender.lives() == [["assign", "retry"] * len(stays) + ["assign", "finish"]]


def test_a_sender_hears_of_many_messages_that_are_moved_and_finished_at_once(
    workers: tuple[Broker, list[str]],
) -> None:
    broker, queues = workers
    sender = Sender(broker, [queues[0]] * 50)
    move(broker, queues[0], queues[3], 50)
    for _ in range(50):
        confirm(broker, take(broker, queues[3]), "success")
    assert sender.lives() == [["assign", "finish"]] * 50
