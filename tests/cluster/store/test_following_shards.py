"""Readers that follow several shards while one of them is busy with what others want."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from tests.support.http_client import Connection
from tests.support.sharded import Store, a_store

QUEUES = {"quiet": 0, "busy": 1}
ROUNDS = 40


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with a_store(tmp_path_factory.mktemp("store") / "two", 2, 2, QUEUES) as store:
        for name in QUEUES:
            assert store.request("PUT", f"/v1/queues/{name}", b"{}").status == 201
        yield store


@contextmanager
def traffic(store: Store) -> Iterator[None]:
    """The shard of `busy` commits something all the time."""
    over = threading.Event()

    def publish() -> None:
        with store.connect(1) as connection:
            for number in count():
                if over.is_set():
                    return
                send(connection, "busy", f"busy {number}")

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        yield
    finally:
        over.set()
        publisher.join()


def send(connection: Connection, queue: str, text: str) -> None:
    body = json.dumps({"message": text}).encode()
    assert connection.request("POST", f"/v1/queues/{queue}/messages", body=body).status == 201


class Lines:
    """Events of a connection, as JSON lines."""

    def __init__(self, connection: Connection, query: str) -> None:
        assert connection.begin(f"/v1/events?follow=true&{query}", {}).status == 200
        self._connection = connection
        self._buffer = b""

    def next(self) -> dict[str, Any]:
        while True:
            while b"\n" not in self._buffer:
                self._buffer += self._connection.read_chunk()
            line, _, self._buffer = self._buffer.partition(b"\n")
            if line:
                event: dict[str, Any] = json.loads(line)
                return event


def test_a_reader_of_a_quiet_queue_does_not_wait_for_the_busy_shard(store: Store) -> None:
    with store.connect(0) as connection, store.connect(0) as publisher, traffic(store):
        lines = Lines(connection, "from=latest&queue=quiet&state=L")
        for number in range(ROUNDS):
            send(publisher, "quiet", f"quiet {number}")
            assert lines.next()["message"] == f"quiet {number}"


def test_so_it_is_as_arrow(store: Store) -> None:
    with store.connect(0) as connection, store.connect(0) as publisher, traffic(store):
        query = f"follow=true&from=latest&queue=quiet&state=L&limit={ROUNDS}"
        connection.send_request("GET", f"/v1/events?{query}", {"Accept": "application/vnd.apache.arrow.stream"})
        store.until(lambda: sum(each.services.event_streams.open for each in shards_of(store)) == len(QUEUES))
        for number in range(ROUNDS):
            send(publisher, "quiet", f"quiet {number}")
        table = pa.ipc.open_stream(connection.read_response().body).read_all()
    assert table["body"].to_pylist() == [b"quiet %d" % number for number in range(ROUNDS)]


def test_no_event_is_missing_or_comes_twice_and_each_shard_keeps_its_order(store: Store) -> None:
    """Nor if the reader goes on with another connection, from any event."""
    seen: list[tuple[int, str]] = []
    cursor, last = "earliest", ""
    with store.connect(0) as publisher, traffic(store):
        while last != "the last one":
            with store.connect(0) as connection:
                lines = Lines(connection, f"state=L&from={cursor}")
                for _ in range(50):
                    event = lines.next()
                    seen.append((event["shard"], event["id"]))
                    cursor, last = event["next"], event["message"]
                    if last == "the last one":
                        break
            if len(seen) == 500:
                send(publisher, "quiet", "the last one")
    for shard in QUEUES.values():
        each = store.request("GET", f"/v1/events?shard={shard}&state=L")
        ids = [json.loads(line)["id"] for line in each.body.splitlines()]
        found = [event for at, event in seen if at == shard]
        assert found == ids[: len(found)]
    assert {shard for shard, _ in seen} == set(QUEUES.values())


def shards_of(store: Store) -> list[Any]:
    return [shard for worker in store.all for shard in worker.shards.values()]
