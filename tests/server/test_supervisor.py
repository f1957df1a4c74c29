"""Several processes that serve one store: they start, die, come back and stop together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from penstock.limits import UNIX_PATH_BYTES_MAX
from penstock.server.supervisor import shards_for
from tests.support.broker import Broker, refused_start, workers_of
from tests.support.dialect_clients import CLIENTS, Client
from tests.support.http_client import Connection
from tests.support.ports import free_port
from tests.support.waiting import wait_until

FLAGS = ("--workers", "2", "--shards", "4")
NAMES = [f"queue-{number}" for number in range(8)]  # In all shards.
ADMIN = {"Authorization": "Bearer admin"}
CONNECTIONS = 12  # So many that each worker gets some.
BODIES = [f"body {number}" for number in range(20)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two workers with four shards, shared by the tests of this file."""
    shared = Broker(tmp_path_factory.mktemp("workers") / "data", flags=FLAGS).start()
    for name in NAMES:
        shared.create_queue(name)
    yield shared
    shared.stop()


def connections(broker: Broker, stack: ExitStack) -> list[Connection]:
    return [stack.enter_context(broker.connect()) for _ in range(CONNECTIONS)]


def answers(broker: Broker, method: str, target: str, headers: dict[str, str] | None = None) -> list[int]:
    """The status of the same request on many connections."""
    with ExitStack() as stack:
        return [each.request(method, target, headers).status for each in connections(broker, stack)]


def wait_until_served(broker: Broker, queue: str) -> None:
    wait_until(lambda: broker.request("GET", f"/queues/{queue}").status == 200, f"{queue} is served")


def drain(client: Client, queue: str) -> list[str]:
    """The bodies of all messages of a queue, which are finished."""
    found: list[str] = []
    while taken := client.take(queue, 20):
        assert all(granted for _, granted in client.finish(queue, taken))
        found += [each.body for each in taken]
    return found


@pytest.mark.parametrize("dialect", CLIENTS)
def test_each_dialect_reaches_every_queue_on_any_connection(dialect: str, broker: Broker) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(CLIENTS[dialect](broker))) for _ in range(4)]
        for name, client in zip(NAMES, clients * 2, strict=True):
            assert list(client.publish(name, BODIES)) == BODIES
        for name, client in zip(NAMES, reversed(clients * 2), strict=True):
            assert sorted(drain(client, name)) == sorted(BODIES)


def test_every_connection_sees_all_queues(broker: Broker) -> None:
    with ExitStack() as stack:
        for connection in connections(broker, stack):
            listed = connection.request("GET", "/v1/queues").json()
            assert {each["name"] for each in listed["queues"]} >= set(NAMES)


def test_a_worker_that_is_killed_is_started_again_and_has_its_messages(broker: Broker) -> None:
    for name in NAMES:
        broker.request("POST", f"/messages/{name}", body=name.encode())
    for worker in workers_of(broker):
        os.kill(worker, signal.SIGKILL)
        broker.wait_until_logged("worker_killed")
        broker.wait_until_logged("worker_listening")
    with closing(CLIENTS["mqs"](broker)) as client:
        for name in NAMES:
            wait_until_served(broker, name)
            assert drain(client, name) == [name]


def test_while_a_worker_is_gone_the_others_go_on(broker: Broker) -> None:
    """Each queue is served, or its client is asked to try again; no request hangs."""
    _, second = workers_of(broker)
    with ExitStack() as stack:
        clients = connections(broker, stack)
        os.kill(second, signal.SIGKILL)
        seen: list[int] = []
        for connection in clients:
            try:
                seen += [connection.request("GET", f"/queues/{name}").status for name in NAMES]
            except (OSError, EOFError):
                continue  # It was a connection of that worker.
    assert seen
    assert set(seen) <= {200, 503}
    broker.wait_until_logged("worker_listening")
    for name in NAMES:
        wait_until_served(broker, name)


def test_clients_that_wait_anywhere_are_answered_when_all_stop(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", flags=FLAGS).start()
    for name in NAMES:
        broker.create_queue(name)
    with ExitStack() as stack:
        waiting = connections(broker, stack)
        for connection, name in zip(waiting, NAMES * 2, strict=False):
            connection.send_request("GET", f"/messages/{name}", {"X-MQS-MAX-WAIT-TIME": "20"})
        wait_until(lambda: _waiting(broker) == len(waiting), "all wait")
        broker.ask_to_stop()
        assert {connection.read_response(to="GET").status for connection in waiting} == {204}
        broker.wait_until_stopped()
    assert all((tmp_path / f"data/shards/{shard:04}/snapshots").exists() for shard in range(4))


def _waiting(broker: Broker) -> float:
    text = broker.request("GET", "/metrics").body.decode()
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith("penstock_waiting_receives "))


def test_a_change_of_tokens_counts_on_all_workers_when_it_is_answered(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", "auth.tokens=admin", flags=FLAGS).start()
    try:
        body = b'{"scopes": ["read:*"]}'
        for _ in range(3):
            made = broker.request("PUT", "/v1/tokens/reader", ADMIN, body)
            assert made.status == 201, made
            secret = {"Authorization": f"Bearer {made.json()['token']}"}
            assert set(answers(broker, "GET", "/v1/queues", secret)) == {200}
            assert broker.request("DELETE", "/v1/tokens/reader", ADMIN).status == 204
            assert set(answers(broker, "GET", "/v1/queues", secret)) == {401}
        made = broker.request("PUT", "/v1/tokens/reader", ADMIN, body)
        os.kill(workers_of(broker)[1], signal.SIGKILL)
        broker.wait_until_logged("worker_listening")
        wait_until(lambda: 503 not in answers(broker, "GET", "/v1/queues", ADMIN), "the workers are linked again")
        secret = {"Authorization": f"Bearer {made.json()['token']}"}
        assert set(answers(broker, "GET", "/v1/queues", secret)) == {200}
    finally:
        broker.stop()


def test_workers_end_with_their_supervisor_and_the_next_one_waits_for_them(tmp_path: Path) -> None:
    http = f"127.0.0.1:{free_port()}"
    broker = Broker(tmp_path / "data", "stop_seconds=1", http=http, flags=FLAGS).start()
    workers = workers_of(broker)
    with broker.connect() as client:
        client.send(b"POST /messages/queue HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        broker.kill()
        Broker(tmp_path / "data", http=http, flags=FLAGS).start().stop()
    assert not any(map(_is_alive, workers))


def _is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_path_too_long_for_sockets_does_not_matter(tmp_path: Path) -> None:
    data = tmp_path / ("long" * (UNIX_PATH_BYTES_MAX // 4)) / "data"
    broker = Broker(data, flags=FLAGS).start()
    for name in NAMES:
        broker.create_queue(name)
    broker.stop()


def test_a_store_is_served_with_another_number_of_workers_and_without_the_option(tmp_path: Path) -> None:
    Broker(tmp_path / "data", flags=FLAGS).start().stop()
    broker = Broker(tmp_path / "data").start()
    assert len(workers_of(broker)) == 1
    assert not (tmp_path / "data/penstock.json").exists()
    broker.stop()


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ("--workers", "2", "--store", "postgresql://localhost/x"),
            "--workers with --store needs --advertise HOST:PORT",
        ),
        (("--workers", "5", "--shards", "4"), "at most as many workers"),
        (("--workers", "many"), "is not a number of workers"),
    ],
)
def test_what_cannot_be_served_is_refused(tmp_path: Path, flags: tuple[str, ...], sentence: str) -> None:
    code, said = refused_start(tmp_path / "data", flags=flags)
    assert code == 2
    assert sentence in " ".join(said.split())


def test_a_directory_with_one_shard_is_served_by_one_worker_and_refused_to_two(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", flags=("--workers", "1")).start()
    assert not workers_of(broker)
    broker.stop()
    code, said = refused_start(tmp_path / "data", flags=("--workers", "2"))
    assert code == 1
    assert "penstock reshard" in said


def test_a_store_that_is_served_is_in_use(broker: Broker) -> None:
    code, said = refused_start(broker.data, flags=FLAGS)
    assert code == 3
    assert "is in use by process" in said


def test_an_address_in_use_is_refused_though_workers_share_theirs(broker: Broker, tmp_path: Path) -> None:
    code, said = refused_start(tmp_path / "data", http="{}:{}".format(*broker.http), flags=FLAGS)
    assert code == 3
    assert "listens there" in said


@pytest.mark.parametrize(("workers", "shards"), [(1, 4), (2, 4), (4, 8)])
def test_a_new_store_has_several_shards_for_each_worker(workers: int, shards: int) -> None:
    assert shards_for(workers) == shards
