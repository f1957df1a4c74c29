"""Brokers on a store in PostgreSQL: one serves, others wait, and what was acknowledged is there whoever serves."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.support.broker import Broker, StartBroker, address
from tests.support.command_line import penstock
from tests.support.http_client import Response
from tests.support.line_client import LineClient
from tests.support.ports import free_port
from tests.support.postgres import Postgres

_WAIT_SECONDS_MAX = 90.0
Serve = Callable[..., Broker]
Wait = Callable[[], Broker]
# Longer than a busy machine stands still. A broker that stops in order need not wait for it.
LEASE = ("store_lease_seconds=12",)


@pytest.fixture
def store(postgres: Postgres) -> str:
    return postgres.new_store()


@pytest.fixture
def serve(store: str, start_broker: StartBroker) -> Serve:
    return lambda *settings, **options: start_broker(*LEASE, *settings, flags=("--store", store), **options)


@pytest.fixture
def waiting(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Wait]:
    """Starts a broker that waits. It listens at the same addresses when it serves."""
    broker = Broker(tmp_path / "waiting", *LEASE, http=f"127.0.0.1:{free_port()}", flags=("--store", store))
    broker.lines = ("127.0.0.1", free_port())
    broker.command[broker.command.index("--lines") + 1] = "{}:{}".format(*broker.lines)

    def start() -> Broker:
        broker.spawn()
        broker.http = address(broker.wait_until_logged("standing_by")["http"])
        return broker

    yield start
    print(broker.log())
    if broker.running:
        broker.stop()


def publish(broker: Broker, body: str) -> Response:
    return broker.request("POST", "/messages/work", body=body.encode())


def bodies(broker: Broker, queue: str = "work") -> list[str]:
    """What a queue holds, without taking it."""
    answer = broker.request("GET", f"/v1/search?queue={queue}&limit=1000")
    assert answer.status == 200, answer
    return sorted(message["message"] for message in answer.json()["messages"])


def said(broker: Broker, key: str, message: str) -> str:
    """Publish; was it queued (Q) or unchanged (U)?"""
    document = {"topics": ["things"], "object": "thing", "key": key, "message": message}
    json_type = {"Content-Type": "application/json"}
    answer = broker.request("POST", "/v1/publish", json_type, json.dumps(document).encode())
    assert answer.status == 201, answer
    return str(answer.json()["state"])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_broker_that_stands_by_is_a_member_that_waits(serve: Serve, waiting: Wait) -> None:
    broker = serve()
    waiting()

    def members() -> list[tuple[str, int, bool]]:
        state = broker.request("GET", "/v1/cluster").json()
        assert [(each["here"], each["reachable"]) for each in state["shards"]] == [(True, True)]
        return sorted((each["state"], each["shards"], each["this"]) for each in state["members"])

    until(lambda: members() == [("serves", 1, True), ("waits", 0, False)])


def test_another_broker_waits_and_takes_over_when_the_first_stops(serve: Serve, waiting: Wait) -> None:
    first = serve()
    first.create_queue("work")
    assert publish(first, "one").status == 201
    second = waiting()
    health = second.request("GET", "/health")
    assert (health.status, health.body[:4]) == (503, b"red:")
    refused = publish(second, "two")
    assert (refused.status, json.loads(refused.body)["code"]) == (503, "unavailable")
    first.stop()
    second.wait_until_listening()
    assert bodies(second) == ["one"]
    assert publish(second, "two").status == 201


def test_after_kill_9_the_same_directory_serves_at_once_and_an_empty_one_when_the_lease_is_over(
    serve: Serve, waiting: Wait
) -> None:
    first = serve()
    first.create_queue("work")
    for number in range(20):
        assert publish(first, f"{number:02}").status == 201
    first.kill()
    first.start()
    assert bodies(first) == [f"{number:02}" for number in range(20)]
    second = waiting()
    killed_at = time.monotonic()
    first.kill()
    second.wait_until_listening()
    print(f"served again after {time.monotonic() - killed_at:.1f} s")
    assert bodies(second) == [f"{number:02}" for number in range(20)]


def test_a_broker_that_was_stopped_past_its_lease_never_acknowledges_again(serve: Serve, waiting: Wait) -> None:
    zombie = serve(http=f"127.0.0.1:{free_port()}")
    zombie.create_queue("work")
    assert publish(zombie, "one").status == 201
    owner = waiting()
    os.kill(zombie.pid, signal.SIGSTOP)
    owner.wait_until_listening()
    assert publish(owner, "two").status == 201
    with zombie.connect() as connection:
        connection.send_request("POST", "/messages/work", body=b"never")
        os.kill(zombie.pid, signal.SIGCONT)
        answer = connection.read_response()
    assert answer.status == 503, answer
    zombie.wait_until_logged("standing_by")
    assert publish(zombie, "never").status == 503
    assert bodies(owner) == ["one", "two"]
    owner.stop()
    zombie.wait_until_listening()
    assert bodies(zombie) == ["one", "two"]


def test_a_broker_goes_on_when_its_connections_are_cut(serve: Serve, postgres: Postgres, store: str) -> None:
    broker = serve()
    broker.create_queue("work")
    acknowledged, unknown = [], set()
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    for number in range(60):
        body = f"{number:02}"
        if number % 20 == 10:
            with closing(psycopg.connect(store, autocommit=True)) as session:
                session.execute(f"{cut} AND pid <> pg_backend_pid()".encode())
        if publish(broker, body).status == 201:
            acknowledged.append(body)
        else:
            unknown.add(body)
            until(lambda: broker.request("GET", "/health").status == 200)
    found = bodies(broker)
    assert set(acknowledged) <= set(found) <= set(acknowledged) | unknown
    assert len(found) == len(set(found))
    assert unknown
    until(lambda: broker.times_logged("revived") == len(unknown))


def test_a_new_owner_begins_with_a_snapshot_of_the_store_and_fetches_older_bodies_when_they_are_read(
    serve: Serve, store: str, tmp_path: Path
) -> None:
    settings = ("log.segment_bytes=65536", "log.snapshot_bytes=1048576")
    first = serve(*settings, data=tmp_path / "first")
    first.create_queue("work")
    expected = [f"{number:03}" + "x" * 30_000 for number in range(60)]
    for body in expected:
        assert publish(first, body).status == 201
    with closing(psycopg.connect(store, autocommit=True)) as session:
        count = "SELECT count(*) FROM penstock.snapshot WHERE counts"
        until(lambda: session.execute(count).fetchone() != (0,))
        first.kill()
        session.execute("UPDATE penstock.shard SET lease_until = '-infinity'")
    second = serve(*settings, data=tmp_path / "second")
    assert len(list((tmp_path / "second" / "snapshots").glob("*.snapshot"))) == 1
    segments = tmp_path / "second" / "log"
    before = len(list(segments.glob("*.log")))
    assert bodies(second) == expected
    assert before < len(list(segments.glob("*.log")))


def test_a_broker_serves_others_while_it_fetches_an_old_body(serve: Serve, store: str, tmp_path: Path) -> None:
    settings = ("log.segment_bytes=65536", "log.snapshot_bytes=1048576")
    first = serve(*settings, data=tmp_path / "first")
    for queue in ("work", "other"):
        first.create_queue(queue)
    for number in range(5):
        assert publish(first, f"{number}" + "x" * 30_000).status == 201
    first.stop()
    second = serve(*settings, data=tmp_path / "second")
    with closing(psycopg.connect(store)) as session, second.connect() as connection:
        session.execute("LOCK TABLE penstock.batch_0_0 IN ACCESS EXCLUSIVE MODE")
        for _ in range(2):
            connection.send_request("GET", "/messages/work")
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%batch_0_0%'"
        with closing(psycopg.connect(store, autocommit=True)) as watcher:
            until(lambda: watcher.execute(waits).fetchone() == (1,))
        assert second.request("POST", "/messages/other", body=b"meanwhile").status == 201
        assert second.request("GET", "/messages/other").status == 200
        session.rollback()
        received = [part.body[:1] for _ in range(2) for part in connection.read_response().messages()]
    assert received == [b"0", b"1"]


def test_unchanged_content_is_detected_by_the_broker_that_takes_over(serve: Serve, tmp_path: Path) -> None:
    first = serve(data=tmp_path / "first")
    assert [said(first, "1", "a"), said(first, "1", "b"), said(first, "2", "a")] == ["Q", "Q", "Q"]
    first.stop()
    second = serve(data=tmp_path / "second")
    assert [said(second, "1", "b"), said(second, "2", "b")] == ["U", "Q"]
    assert second.request("GET", "/v1/objects/thing/1").json()["versions"] == 2
    assert second.times_logged("history_caught_up") == 1


def test_a_copy_is_not_served_as_a_log_of_its_own(serve: Serve, tmp_path: Path) -> None:
    serve(data=tmp_path / "copy").stop()
    alone = Broker(tmp_path / "copy")
    with pytest.raises(AssertionError, match="is a copy of a log in a store"):
        alone.start()


def test_a_directory_with_a_log_of_its_own_is_not_used_as_a_copy(serve: Serve, start_broker: StartBroker) -> None:
    own = start_broker()
    own.stop()
    with pytest.raises(AssertionError, match="belongs to another log than the store"):
        serve(data=own.data)


def test_a_broker_that_waits_answers_clients_of_every_port_and_stops_when_it_is_asked_to(
    serve: Serve, waiting: Wait
) -> None:
    serve()
    broker = waiting()
    with closing(LineClient(broker.lines)) as client:
        assert client.ask(cmd="req", qname="work")["err"] == "UNAVAILABLE"
    broker.stop()


def test_an_operator_moves_what_a_broker_serves_to_another_one_and_drains_a_broker(
    serve: Serve, waiting: Wait, store: str
) -> None:
    first = serve(http=f"127.0.0.1:{free_port()}")
    first.create_queue("work")
    assert publish(first, "one").status == 201
    second = waiting()
    addresses = ["{}:{}".format(*broker.http) for broker in (first, second)]
    moved = penstock("cluster", "move", store, "work", addresses[1])
    assert "will have shard 0, with the queue work" in moved.stdout, moved
    second.wait_until_listening()
    assert bodies(second) == ["one"]
    first.wait_until_logged("standing_by")
    shown = json.loads(penstock("cluster", "status", store, "--json").stdout)
    assert {node["address"]: node["state"] for node in shown["nodes"]} == {
        addresses[0]: "waits",
        addresses[1]: "serves",
    }
    assert penstock("cluster", "drain", store, addresses[1]).returncode == 0
    first.wait_until_listening()
    assert bodies(first) == ["one"]
    second.wait_until_logged("standing_by")
    text = penstock("cluster", "status", store).stdout
    assert [line.split()[2] for line in text.splitlines() if addresses[1] in line.split()[1:2]] == ["drained"]
    refused = penstock("cluster", "move", store, "work", addresses[1])
    assert (refused.returncode, "is draining, and would not take it" in refused.stderr) == (5, True)
    unknown = penstock("cluster", "drain", store, "nobody.example:1")
    assert (unknown.returncode, "the store knows no broker nobody.example:1" in unknown.stderr) == (4, True)
    first.stop()
    second.wait_until_listening()  # There is no other: better than nobody.
