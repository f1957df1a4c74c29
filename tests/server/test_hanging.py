"""A worker that hangs: only its own clients miss it, and it is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker import Broker, structured, workers_of
from tests.support.http_client import Connection
from tests.support.waiting import wait_until

WORKERS, SHARDS = 3, 6
FLAGS = ("--workers", str(WORKERS), "--shards", str(SHARDS))
HUNG = 1
NAMES = [f"queue-{number}" for number in range(12)]  # In all shards.
CONNECTIONS = 24  # So many that each worker gets some.


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    settings = ("worker_silence_seconds=1", "logging.level=debug")  # Nothing that is logged may harm a worker.
    started = Broker(tmp_path / "data", *settings, flags=FLAGS).start()
    for name in NAMES:
        started.create_queue(name)
    yield started
    if started.running:
        started.stop()


def worker_of(connection: Connection) -> int:
    state = connection.request("GET", "/v1/cluster").json()
    (this,) = [number for number, each in enumerate(state["members"]) if each["this"]]
    return this


def state_of(connection: Connection) -> tuple[str, bool]:
    """Of the worker that hangs, as another one sees it."""
    member = connection.request("GET", "/v1/cluster").json()["members"][HUNG]
    return member["state"], member["linked"]


def connections_to_others(broker: Broker, stack: ExitStack) -> list[Connection]:
    made = [stack.enter_context(broker.connect()) for _ in range(CONNECTIONS)]
    return [each for each in made if worker_of(each) != HUNG]


def test_a_worker_that_hangs_is_missed_by_nobody_else_and_replaced(broker: Broker) -> None:
    with ExitStack() as stack:
        others = connections_to_others(broker, stack)
        hung = workers_of(broker)[HUNG]
        os.kill(broker.pid, signal.SIGSTOP)  # So that it stays away while its clients look.
        os.kill(hung, signal.SIGSTOP)
        waiting = stack.enter_context(broker.connect())
        assert worker_of(waiting) != HUNG, "others accept its connections"
        for _ in range(CONNECTIONS):
            assert worker_of(stack.enter_context(broker.connect())) != HUNG
        wait_until(lambda: others[0].request("GET", "/health").status == 503, "it counts as away")
        for connection in others:
            health = connection.request("GET", "/health")
            assert health.status == 503
            assert f"cannot be reached: worker {HUNG} has been silent for" in health.body.decode()
        metrics = others[0].request("GET", "/metrics").body.decode()
        assert f'penstock_shards_away{{worker="{HUNG}"}} {SHARDS / WORKERS}\n' in metrics
        assert "penstock_queues " in metrics
        assert "penstock_commits_total" not in metrics
        assert state_of(others[0]) == ("silent", True)
        wait_until(lambda: state_of(others[0]) == ("gone", False), "its links are closed")
        statuses = [others[0].request("GET", f"/queues/{name}").status for name in NAMES]
        assert set(statuses) == {200, 503}, "whoever needs it is answered too"
        os.kill(broker.pid, signal.SIGCONT)
        silent = broker.wait_until_logged("worker_silent")
        assert (silent["worker"], silent["pid"], silent["state"]) == (HUNG, hung, "T")
        assert broker.wait_until_logged("worker_killed")["worker"] == HUNG
        broker.wait_until_logged("worker_listening")
        wait_until(lambda: waiting.request("GET", "/health").body == b"green", "all are there")
        assert {waiting.request("GET", f"/queues/{name}").status for name in NAMES} == {200}
        assert "penstock_commits_total" in waiting.request("GET", "/metrics").body.decode()


def test_a_stop_does_not_wait_for_one_that_hangs(broker: Broker) -> None:
    os.kill(workers_of(broker)[HUNG], signal.SIGSTOP)
    broker.stop()


def events_of(*how: str) -> dict[str, dict[str, Any]]:
    """What a supervisor logs whose worker stands still, until it has killed it."""
    command = [sys.executable, "-m", "tests.support.hanging", *how]
    ended = subprocess.run(command, stderr=subprocess.PIPE, timeout=60, check=True)
    return {event["event"]: event for line in ended.stderr.decode().splitlines() if (event := structured(line))}


def test_a_loop_that_stands_still_says_where() -> None:
    events = events_of()
    assert "in stand_still" in events["worker_stack"]["stack"]
    assert events["worker_killed"]["signal"] == "SIGKILL"
    assert list(events) == ["listening", "worker_silent", "worker_stack", "worker_killed"]


def test_a_worker_hears_that_it_is_to_stop_from_the_beginning() -> None:
    events = events_of("stopped-at-birth")
    assert (list(events), events["worker_killed"]["signal"]) == (["worker_killed"], "SIGTERM")
