"""Several brokers share the shards of a store in PostgreSQL: each serves all queues, and shards move between them."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from penstock.broker.shard_map import ShardMap
from tests.support.broker import Broker, refused_start
from tests.support.certificates import Pair
from tests.support.command_line import penstock
from tests.support.dialect_clients import CLIENTS
from tests.support.http_client import Response
from tests.support.nodes import is_balanced, node_on, nodes_on, status, until
from tests.support.ports import free_port
from tests.support.postgres import Postgres
from tests.support.ws_client import WsClient

SHARDS = 4
QUEUES = [f"work-{number}" for number in range(8)]
assert {ShardMap(SHARDS).of_name(name) for name in QUEUES} == set(range(SHARDS))
# Longer than a busy machine stands still. A node that stops in order need not wait for it.
LEASE = "store_lease_seconds=12"


@pytest.fixture
def store(postgres: Postgres) -> str:
    return postgres.new_store(SHARDS)


@pytest.fixture
def nodes(store: str, tmp_path: Path) -> Iterator[list[Broker]]:
    with nodes_on(store, tmp_path, 2, LEASE) as started:
        yield started


def publish(node: Broker, queue: str, body: str) -> Response:
    return node.request("POST", f"/messages/{queue}", body=body.encode())


def bodies(node: Broker) -> list[str]:
    """What all queues hold, without taking it."""
    answer = node.request("GET", "/v1/search?limit=1000")
    assert answer.status == 200, answer
    return sorted(message["message"] for message in answer.json()["messages"])


def fill(nodes: list[Broker], *texts: str) -> list[str]:
    """Publish to each queue through each node in turn. Returns what is there then."""
    published = []
    for text in texts:
        for number, queue in enumerate(QUEUES):
            body = f"{text} {queue}"
            assert publish(nodes[number % len(nodes)], queue, body).status == 201
            published.append(body)
    return sorted(published)


def make_queues(node: Broker) -> None:
    for queue in QUEUES:
        node.create_queue(queue)


def test_a_message_of_any_dialect_is_taken_and_finished_in_any_other_at_another_node(nodes: list[Broker]) -> None:
    make_queues(nodes[0])
    pairs = list(product(CLIENTS, CLIENTS))
    for number, (poster, taker) in enumerate(pairs):
        queue = QUEUES[number % len(QUEUES)]
        with closing(CLIENTS[poster](nodes[0])) as sends, closing(CLIENTS[taker](nodes[1])) as takes:
            assert list(sends.publish(queue, ["hello"])) == ["hello"]
            (taken,) = takes.take(queue, 1)
            assert taken.body == "hello"
            assert [granted for _, granted in takes.finish(queue, [taken])] == [True]
    expected = fill(nodes, "one")
    assert bodies(nodes[0]) == bodies(nodes[1]) == expected


def test_a_node_that_stops_hands_over_and_one_that_returns_gets_its_share(nodes: list[Broker], store: str) -> None:
    make_queues(nodes[0])
    expected = fill(nodes, "one")
    nodes[0].stop()
    until(lambda: bodies_or_none(nodes[1]) == expected)
    more = fill(nodes[1:], "two")
    nodes[0].start()
    until(lambda: is_balanced(store, 2))
    until(lambda: bodies_or_none(nodes[0]) == bodies_or_none(nodes[1]) == sorted(expected + more))


def bodies_or_none(node: Broker) -> list[str] | None:
    answer = node.request("GET", "/v1/search?limit=1000")
    return sorted(message["message"] for message in answer.json()["messages"]) if answer.status == 200 else None


def test_the_shards_of_a_node_that_was_killed_are_served_by_the_others(nodes: list[Broker]) -> None:
    make_queues(nodes[0])
    expected = fill(nodes, "one", "two")
    nodes[1].kill()
    until(lambda: bodies_or_none(nodes[0]) == expected)
    fill(nodes[:1], "three")


def test_a_node_that_was_stopped_past_its_lease_never_acknowledges_for_what_it_had(
    nodes: list[Broker], store: str
) -> None:
    make_queues(nodes[0])
    expected = fill(nodes, "one")
    zombie, other = nodes[1], nodes[0]
    (had,) = [queue for queue in QUEUES[:4] if owner_of(store, queue) == "{}:{}".format(*zombie.http)][
        :1
    ] or pytest.fail("it has none of them")
    os.kill(zombie.pid, signal.SIGSTOP)
    until(lambda: bodies_or_none(other) == expected)
    with zombie.connect() as connection:
        connection.send_request("POST", f"/messages/{had}", body=b"never")
        os.kill(zombie.pid, signal.SIGCONT)
        answer = connection.read_response()
    assert answer.status == 503, answer
    until(lambda: bodies_or_none(zombie) == expected)  # It goes on, with the shards that it gets.
    until(lambda: is_balanced(store, 2))
    fill(nodes, "two")


def owner_of(store: str, queue: str) -> str:
    """The address of the node that has it."""
    return str(status(store)["shards"][ShardMap(SHARDS).of_name(queue)]["address"])


def test_an_operator_drains_a_node_and_moves_a_queue(nodes: list[Broker], store: str) -> None:
    make_queues(nodes[0])
    first, second = ("{}:{}".format(*node.http) for node in nodes)
    assert penstock("cluster", "drain", store, first).returncode == 0
    until(lambda: {shard["address"] for shard in status(store)["shards"]} == {second})
    expected = fill(nodes, "one")  # It has no shard, and serves its clients.
    assert nodes[0].request("GET", "/health").body == b"green"
    assert nodes[0].request("GET", "/metrics").status == 200
    assert penstock("cluster", "drain", store, first, "--undo").returncode == 0
    until(lambda: is_balanced(store, 2))
    moved = next(queue for queue in QUEUES if owner_of(store, queue) == first)
    assert penstock("cluster", "move", store, moved, second).returncode == 0
    until(lambda: owner_of(store, moved) == second)
    until(lambda: bodies_or_none(nodes[0]) == expected)


def test_a_token_counts_on_every_node_when_it_is_answered(nodes: list[Broker]) -> None:
    made = nodes[1].request("PUT", "/v1/tokens/boss", body=b'{"scopes": ["admin"]}')
    assert made.status == 201, made
    shown = {"Authorization": f"Bearer {made.json()['token']}"}
    for node in nodes:
        assert node.request("GET", "/openapi.json").status == 401
        assert node.request("GET", "/openapi.json", shown).status == 200
    nodes[0].stop()  # Whoever had shard 0, the tokens are with it.
    until(lambda: nodes[1].request("GET", "/v1/tokens", shown).status == 200)
    nodes[0].start()
    assert nodes[0].request("GET", "/openapi.json").status == 401
    until(lambda: nodes[0].request("DELETE", "/v1/tokens/boss", shown).status == 204)
    for node in nodes:
        assert node.request("GET", "/openapi.json").status == 200


def test_a_channel_elsewhere_gets_each_message_once_while_its_shard_moves(nodes: list[Broker], store: str) -> None:
    json_type = {"Content-Type": "application/json"}
    names = [f"copies-{number}" for number in range(SHARDS)]
    for name in names:
        channel = json.dumps({"topics": ["orders.*"]}).encode()
        answer = nodes[0].request("PUT", f"/v1/channels/{name}", json_type, channel)
        assert answer.status in (200, 201), answer
    sent = [f"{number:02}" for number in range(60)]

    def is_published(number: int) -> bool:
        """Tried again while its shard moves, and counted once."""
        body = json.dumps({"topics": ["orders.new"], "message": sent[number]}).encode()
        keyed = {**json_type, "Idempotency-Key": sent[number]}
        return nodes[number % 2].request("POST", "/v1/publish", keyed, body).status == 201

    for number in range(60):
        if number in (20, 40):
            to = "{}:{}".format(*nodes[number // 20 - 1].http)
            for name in names:
                penstock("cluster", "move", store, name, to)
        until(lambda number=number: is_published(number))  # type: ignore[misc]

    def copied(name: str) -> list[str] | None:
        answer = nodes[0].request("GET", f"/v1/search?queue={name}&limit=1000")
        return sorted(each["message"] for each in answer.json()["messages"]) if answer.status == 200 else None

    for name in names:
        until(lambda name=name: len(copied(name) or ()) >= len(sent))  # type: ignore[misc]
        assert copied(name) == sent


def test_a_node_has_several_workers_each_with_shards_of_its_own(store: str, tmp_path: Path) -> None:
    node = node_on(store, tmp_path, LEASE, flags=("--workers", "2")).start()
    try:
        until(lambda: is_balanced(store, 2))
        make_queues(node)
        expected = fill([node], "one")
        assert bodies(node) == expected
        child = int(Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()[0])
        os.kill(child, signal.SIGKILL)
        until(lambda: serves_again(node, expected))
        node.stop()
    finally:
        print(node.log())
        if node.running:
            node.kill()


def serves_again(node: Broker, expected: list[str]) -> bool:
    """Connections to a worker that was killed are refused or cut off."""
    try:
        return bodies_or_none(node) == expected
    except (OSError, EOFError, AssertionError):
        return False


def test_a_session_is_continued_at_another_node_and_gone_when_its_node_is(nodes: list[Broker]) -> None:
    first, second = nodes
    make_queues(first)
    large, durable = "x" * (1 << 20), {"Durable_Session": "true"}
    with WsClient(first.http, **durable) as client:
        session = client.hear()["id"]
        for label, queue in enumerate(QUEUES):
            post = {"type": "post", "queue": queue, "message": "m", "notify": ["sync", "finish"], "label": label}
            answer = client.ask(**post)
            assert answer.get("notice") == "sync", answer
        assert client.ask(type="fetch", queue=QUEUES[0])["sequence"] == 1
    with WsClient(second.http) as other:
        other.hear()
        assert [other.ask(type="pop", queue=queue)["body"] for queue in QUEUES[1:]] == ["m"] * len(QUEUES[1:])
    with WsClient(second.http, **durable, Reconnect_As=str(session)) as client:
        assert client.hear()["id"] == session
        assert {client.hear()["label"] for _ in QUEUES[1:]} == set(range(1, len(QUEUES)))
        client.say({"type": "finish", "queue": QUEUES[0], "sequence": 1, "shard": 0, "label": 9})
        assert sorted([client.hear()["label"], client.hear()["label"]]) == [0, 9]
        for label in range(20):  # More than fits between two processes.
            client.say({"type": "post", "queue": QUEUES[0], "message": large, "notify": ["sync"], "label": label})
        assert [client.hear()["label"] for _ in range(20)] == list(range(20))
        client.say(*[{"type": "pop", "queue": QUEUES[0], "label": 1}] * 20)
        assert all(client.hear()["body"] == large for _ in range(20))
    first.kill()
    until(lambda: bodies_or_none(second) is not None)
    with WsClient(second.http, **durable, Reconnect_As=str(session)) as client:
        assert client.hear()["id"] != session
        post = {"type": "post", "queue": QUEUES[0], "message": "m", "notify": ["sync"], "label": 1}
        until(lambda: client.ask(**post).get("notice") == "sync")  # A busy machine may lose a lease once more.


def test_links_are_encrypted_between_machines_or_refused(store: str, tmp_path: Path) -> None:
    code, complaint = refused_start(tmp_path, flags=("--store", store, "--advertise", f"192.0.2.1:{free_port()}"))
    assert code == 2
    assert "without encryption: others could read them on their way. Set tls.certificate" in complaint


def test_nodes_with_certificates_link_over_tls_and_say_why_they_do_not(store: str, tmp_path: Path) -> None:
    authority, stranger = Pair(tmp_path, "authority"), Pair(tmp_path, "stranger")
    pairs = [Pair(tmp_path, name, issuer=authority) for name in ("first", "second")]
    settings = [(*pair.settings, f"cluster.ca={authority.certificate}", LEASE) for pair in pairs]
    options = {"trust": authority.trusting()}
    nodes = [node_on(store, tmp_path / f"{n}", *each, **options) for n, each in enumerate(settings)]
    lost = node_on(store, tmp_path / "lost", *stranger.settings, f"cluster.ca={stranger.certificate}", LEASE)
    try:
        for node in nodes:
            node.start()
        until(lambda: is_balanced(store, 2))
        make_queues(nodes[0])
        fill(nodes, "one")
        lost.spawn()
        assert "certificate verify failed" in lost.wait_until_logged("node_waits")["reason"]
    finally:
        for node in (*nodes, lost):
            print(node.log())
            if node.running:
                node.kill()


def test_an_address_for_links_that_is_in_use_is_named(store: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        flags = ("--store", store, "--advertise", "127.0.0.1:{1}".format(*taken.getsockname()))
        code, complaint = refused_start(tmp_path, flags=flags)
    assert code
    assert "listens there. Stop it, or choose another address: --advertise HOST:PORT" in complaint


def test_a_copy_of_a_node_is_not_served_without_its_store(nodes: list[Broker], tmp_path: Path) -> None:
    nodes[0].stop()
    code, complaint = refused_start(nodes[0].data)
    assert (code, "is a copy of a log in a store" in complaint) == (1, True)


def test_a_node_that_is_asked_to_stop_while_it_waits_for_others_stops(store: str, tmp_path: Path) -> None:
    first = node_on(store, tmp_path / "first", LEASE).start()
    os.kill(first.pid, signal.SIGSTOP)
    second = node_on(store, tmp_path / "second", LEASE)
    try:
        second.spawn()
        second.wait_until_logged("store")
        second.ask_to_stop()
        assert second.ended_within(30)
    finally:
        os.kill(first.pid, signal.SIGCONT)
        first.kill()


def test_a_backup_of_several_shards_is_left_to_postgresql(nodes: list[Broker], tmp_path: Path) -> None:
    refused = penstock("backup", str(tmp_path / "backup"), PENSTOCK_URL=nodes[0].url)
    assert refused.returncode == 5
    assert "shards of a store in PostgreSQL are backed up with PostgreSQL" in refused.stderr
    assert not (tmp_path / "backup").exists()
