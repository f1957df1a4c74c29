"""A broker whose machine has an earlier time than its log: leases and delays last as long as ever."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.http_client import Connection
from tests.support.nodes import node_on
from tests.support.postgres import Postgres

AHEAD_SECONDS = 3600.0
_AHEAD = """
import runpy, sys
from penstock.torture.inside import Faults, State
Faults(State(clock=float(sys.argv.pop(1)))).install()
runpy.run_module("penstock.cli", run_name="__main__")
"""

Make = Callable[[Path], Broker]


@contextmanager
def served(broker: Broker) -> Iterator[Broker]:
    try:
        yield broker.start()
    finally:
        if broker.running:
            broker.stop()


@contextmanager
def served_ahead(broker: Broker) -> Iterator[Broker]:
    """On a machine whose clock is ahead."""
    program, module, arguments = broker.command[:1], broker.command[2], broker.command[3:]
    assert (broker.command[0], module) == (sys.executable, "penstock.cli")
    broker.command = [*program, "-c", _AHEAD, str(AHEAD_SECONDS), *arguments]
    with served(broker):
        yield broker


def receive(connection: Connection, queue: str) -> str:
    answer = connection.request("GET", f"/messages/{queue}", {"X-MQS-MAX-WAIT-TIME": "20"})
    assert answer.status == 200, answer
    return answer.body.decode()


def comes_back_in_time(make: Make, folder: Path, queues: list[str]) -> None:
    with served_ahead(make(folder)) as ahead:
        for queue in queues:
            ahead.create_queue(queue, visibility_timeout=1, message_delay=1)
            assert ahead.request("POST", f"/messages/{queue}", body=b"hello").status == 201
    with served(make(folder)) as broker:
        began = time.monotonic()
        for queue in queues * 2:
            with broker.connect() as connection:
                assert receive(connection, queue) == "hello"
        assert time.monotonic() - began < AHEAD_SECONDS / 10
        assert broker.times_logged("clock_behind_log") >= 1


def test_leases_and_delays_of_a_data_directory_from_the_future_end_in_time(tmp_path: Path) -> None:
    comes_back_in_time(Broker, tmp_path / "data", ["work"])


def test_so_they_do_in_all_shards_of_a_process(tmp_path: Path) -> None:
    def workers(data: Path) -> Broker:
        return Broker(data, flags=("--workers", "2", "--shards", "3"))

    comes_back_in_time(workers, tmp_path / "data", ["work-0", "work-1", "work-2"])


@pytest.mark.parametrize("shards", [1, 2])
def test_so_they_do_in_shards_that_another_machine_takes_over(
    postgres: Postgres, tmp_path: Path, shards: int
) -> None:
    url = postgres.new_store(shards) if shards > 1 else postgres.new_store()

    def node(data: Path) -> Broker:
        return node_on(url, data) if shards > 1 else Broker(data, flags=("--store", url))

    comes_back_in_time(node, tmp_path / "data", ["work-0", "work-1"][:shards])
