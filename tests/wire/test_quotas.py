"""Quotas on the wire: what is over a quota is refused in the form of each dialect, and nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from penstock.limits import FAULTS_PER_SECOND_MAX
from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Connection, Response
from tests.support.line_client import LineClient
from tests.support.quota_clients import CLIENTS, EMPTY, QUEUE, is_refused
from tests.support.waiting import wait_until
from tests.support.ws_client import WsClient

TRIES = 60
LIMITS = {
    "bytes_per_second": (1000, "publish"),
    "requests_per_second": (1, "receive"),
    "published_per_second": (1, "publish"),
    "received_per_second": (1, "receive"),
    "queues_per_minute": (3, "create"),
}


def prepared(broker: Broker) -> Broker:
    broker.create_queue(QUEUE, visibility_timeout=0)
    broker.create_queue(EMPTY)
    with broker.connect() as connection:
        messages = {"kept": ["x"] * 100, QUEUE: ["x"] * 100}
        assert connection.request("POST", "/post", body=json.dumps({"messages": messages}).encode()).status == 200
    return broker


@pytest.fixture(scope="module", params=LIMITS)
def limited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Broker]]:
    """A broker with one quota, for all dialects; its queues were made before the quota was set."""
    quota: str = request.param
    data: Path = tmp_path_factory.mktemp("quota") / "data"
    before = prepared(Broker(data).start())
    before.stop()
    broker = Broker(data, f"quota.address.{quota}={LIMITS[quota][0]}").start()
    yield quota, broker
    broker.stop()


@pytest.mark.parametrize("dialect", CLIENTS)
def test_what_is_over_a_quota_is_refused_in_the_form_of_the_dialect(
    limited: tuple[str, Broker], dialect: str
) -> None:
    quota, broker = limited
    client = connected(dialect, broker)
    use: Callable[[], str] = getattr(client, LIMITS[quota][1])
    answers: list[str] = []
    while len(answers) < TRIES and not (answers and is_refused(dialect, answers[-1], quota)):
        answers.append(use())
    client.close()
    assert is_refused(dialect, answers[-1], quota), answers[-3:]


def connected(dialect: str, broker: Broker) -> Any:
    """A client; the handshake of its WebSocket may be over the quota because of the test before."""
    while True:
        with suppress(InvalidStatus):
            return CLIENTS[dialect](broker)


def test_a_client_that_waits_as_long_as_it_is_told_is_served_again(start_broker: StartBroker) -> None:
    broker = start_broker("quota.address.published_per_second=5")
    with broker.connect() as connection:
        many = json.dumps({"messages": {QUEUE: ["x"] * 10}}).encode()
        assert connection.request("POST", "/post", body=many).status == 200, "what has begun is carried out"
        refused = connection.request("POST", f"/messages/{QUEUE}", body=b"x")
        assert (refused.status, refused.header("Retry-After")) == (429, "2")
        while connection.request("POST", f"/messages/{QUEUE}", body=b"x").status == 429:
            pass
    metrics = broker.request("GET", "/metrics").body.decode()
    assert 'penstock_quota_refused_total{quota="published_per_second"}' in metrics
    assert broker.times_logged("quota_exceeded") == 1


@pytest.mark.parametrize("dialect", CLIENTS)
def test_only_so_many_requests_wait_at_once(start_broker: StartBroker, dialect: str) -> None:
    broker = prepared(start_broker("quota.address.waiting=2"))
    waiting = [CLIENTS[dialect](broker) for _ in range(2)]
    for client in waiting:
        client.wait()
    if "etzel" in dialect:
        assert all('"okslp"' in client.hear() for client in waiting)
    late = CLIENTS[dialect](broker)
    late.wait()
    answer = late.hear()
    assert is_refused(dialect, answer, "waiting"), answer
    waiting.pop().close()
    late.wait()
    if "etzel" in dialect:
        while is_refused(dialect, late.hear(), "waiting"):
            late.wait()
    for client in (late, *waiting):
        client.close()


def refused_on(connection: Connection) -> str:
    with connection:
        return connection.read_to_end().decode()


def test_a_connection_too_many_is_refused_with_the_reason(start_broker: StartBroker) -> None:
    broker = start_broker("quota.address.connections=2")
    with broker.connect() as first, LineClient(broker.lines) as second:
        assert first.request("GET", "/health").status == 200
        assert second.ask(cmd="SUB", qname="q")["cmd"] == "oksub"
        answer = refused_on(broker.connect())
        assert answer.startswith("HTTP/1.1 429 ")
        assert "quota.address.connections = 2" in answer
        with LineClient(broker.lines) as third:
            reply = third.hear()
            assert (reply["cmd"], reply["err"]) == ("nok", "QUOTA_EXCEEDED")
            assert third.ended_within(5)
        with elsewhere(broker) as other:
            other.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert other.recv(100).startswith(b"HTTP/1.1 200")


def elsewhere(broker: Broker) -> socket.socket:
    """A connection from another address."""
    return socket.create_connection(broker.http, timeout=30, source_address=("127.0.0.2", 0))


def test_connections_too_soon_after_each_other_are_refused(start_broker: StartBroker) -> None:
    broker = start_broker("quota.address.connections_per_second=1")
    answers: list[str] = []
    while len(answers) < TRIES and not (answers and "429" in answers[-1]):
        with elsewhere(broker) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answers.append(connection.recv(1000).decode())
    assert answers[0].startswith("HTTP/1.1 200")
    assert "quota.address.connections_per_second = 1" in answers[-1]
    assert "Retry-After: 1" in answers[-1]


def test_a_websocket_counts_as_the_connection_that_it_was(start_broker: StartBroker) -> None:
    broker = start_broker("quota.address.connections=1")
    for _ in range(3):
        with WsClient(broker.http) as client:
            assert client.hear()["type"] == "hello"
            assert "429" in refused_on(broker.connect())
        while not refused_or_healthy(broker):
            pass


def refused_or_healthy(broker: Broker) -> bool:
    """Whether the broker has noticed that the last connection is gone."""
    with broker.connect() as connection:
        return connection.request("GET", "/health").status == 200


def test_a_client_that_reads_too_little_is_disconnected(start_broker: StartBroker) -> None:
    broker = start_broker("quota.address.unread_bytes=2000000")
    broker.create_queue("large", visibility_timeout=0)
    with broker.connect() as connection:
        for _ in range(16):
            assert connection.request("POST", "/messages/large", body=b"x" * (1 << 20)).status == 201
    with elsewhere(broker) as greedy:
        greedy.sendall(b"GET /messages/large HTTP/1.1\r\nHost: localhost\r\n\r\n" * 64)
        event = broker.wait_until_logged("unread_answers_dropped")
    assert "quota.address.unread_bytes = 2e+06" in event["reason"]


def refused_in_the_end(connection: Connection, target: str) -> Response:
    answers = (connection.request("GET", target) for _ in range(100 * TRIES))
    return next(answer for answer in answers if answer.status == 429)


def test_searches_and_readers_are_charged_for_the_time_that_they_take(start_broker: StartBroker) -> None:
    broker = prepared(start_broker("quota.address.search_seconds_per_minute=0.001"))
    with broker.connect() as connection:
        answer = refused_in_the_end(connection, f"/v1/search?queue={QUEUE}&text=needle")
    assert answer.json()["code"] == "quota_exceeded"
    assert int(answer.header("Retry-After") or 0) >= 1, "the longer the search took, the longer"
    assert broker.request("GET", "/v1/events").status == 200


def test_a_reader_over_its_quota_is_refused_at_its_start(start_broker: StartBroker) -> None:
    broker = prepared(start_broker("quota.address.replay_seconds_per_minute=0.02"))
    with broker.connect() as connection:
        answer = refused_in_the_end(connection, "/v1/log/batches?from=0")
    assert answer.json()["code"] == "quota_exceeded"
    assert broker.request("GET", f"/v1/search?queue={QUEUE}").status == 200


def refusals(broker: Broker, quota: str) -> float:
    metrics = broker.request("GET", "/metrics").body.decode()
    return float(next(line for line in metrics.splitlines() if f'quota="{quota}"' in line).split()[1])


def test_a_client_that_floods_does_not_use_up_what_others_may_send(start_broker: StartBroker) -> None:
    broker = prepared(start_broker("quota.address.requests_per_second=50"))
    request = b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with elsewhere(broker) as flood, broker.connect() as honest:
        flood.sendall(request * 2000)
        assert [honest.request("GET", "/health").status for _ in range(20)] == [200] * 20
        refused = wait_until(
            lambda: refusals(broker, "requests_per_second"), "a refusal: the flood has its turn later"
        )
    assert refused <= 100


def test_a_large_request_over_the_quota_of_bytes_waits_and_is_carried_out(start_broker: StartBroker) -> None:
    broker = prepared(start_broker("quota.address.bytes_per_second=2000000"))
    post = b"POST /messages/%b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n\r\n" % QUEUE.encode()
    with broker.connect() as connection:
        connection.send((post + b"x" * 900_000) * 4)
        assert [connection.read_response().status for _ in range(4)] == [201] * 4


def test_requests_that_used_up_their_time_wait_and_are_answered(start_broker: StartBroker) -> None:
    broker = prepared(start_broker("quota.address.work_seconds_per_second=0.01"))
    for target, status in (("/v1/queues", 200), ("/metrics", 200), ("/nothing", 404)):
        with broker.connect() as connection:
            connection.send(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() * 20)
            assert [connection.read_response().status for _ in range(20)] == [status] * 20


def test_a_client_that_breaks_the_protocol_again_and_again_is_still_told_why(start_broker: StartBroker) -> None:
    broker = start_broker("quota.address.connections=100")
    for _ in range(2 * FAULTS_PER_SECOND_MAX):
        with broker.connect() as connection:
            connection.send(b"nonsense\r\n\r\n")
            assert connection.read_response().status == 400
    with WsClient(broker.http) as client:
        assert client.hear()["type"] == "hello"


# Identities


def as_token(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def test_each_identity_has_a_quota_of_its_own_wherever_it_comes_from(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=one,two", "quota.identity.queues_per_minute=2")
    body = b'{"retention_timeout":60,"visibility_timeout":30,"message_deduplication":false}'

    def create(token: str, name: str) -> Response:
        return broker.request("PUT", f"/queues/{name}", as_token(token), body)

    assert [create("one", f"one-{number}").status for number in range(3)] == [201, 201, 429]
    assert "quota.identity.queues_per_minute = 2" in create("one", "one-4").json()["error"]
    assert [create("two", f"two-{number}").status for number in range(3)] == [201, 201, 429]


def test_the_limits_of_a_token_hold_for_its_identity(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=admin")
    document = b'{"scopes": ["manage"], "limits": {"queues_per_minute": 1}}'
    created = broker.request("PUT", "/v1/tokens/limited", as_token("admin"), document)
    assert created.status == 201, created
    token = as_token(created.json()["token"])
    answers = [broker.request("PUT", f"/v1/queues/own-{number}", token, b"{}") for number in range(2)]
    assert [answer.status for answer in answers] == [201, 429]
    assert "queues_per_minute = 1 in the limits of token limited" in answers[1].json()["error"]
    changed = broker.request("PATCH", "/v1/tokens/limited", as_token("admin"), b'{"limits": {}}')
    assert changed.status == 200, changed
    assert broker.request("PUT", "/v1/queues/own-2", token, b"{}").status == 201


def test_the_connections_of_an_identity_are_counted_from_its_login_on(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=one,two", "quota.identity.connections=1")
    with LineClient(broker.lines) as guest, LineClient(broker.lines) as first, LineClient(broker.lines) as second:
        assert first.ask(cmd="AUTH", token="one")["cmd"] == "okauth"
        refused = second.ask(cmd="AUTH", token="one")
        assert (refused["cmd"], refused["err"]) == ("nok", "QUOTA_EXCEEDED")
        assert second.ended_within(5)
        assert guest.ask(cmd="AUTH", token="two")["cmd"] == "okauth"
    with broker.connect() as connection:
        while connection.request("GET", "/queues", as_token("one")).status == 429:  # Until `first` is gone.
            connection.close()
            connection = broker.connect()
        assert broker.request("GET", "/queues", as_token("one")).status == 429
        assert connection.request("GET", "/queues", as_token("two")).status == 200
        assert broker.request("GET", "/queues", as_token("one")).status == 200
        connection.close()


# Logins


def test_failed_logins_are_counted_logged_and_answered_later_and_later(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=right")
    for _ in range(3):
        assert broker.request("GET", "/queues", as_token("wrong-guess")).status == 401
        with LineClient(broker.lines) as client:
            assert client.ask(cmd="AUTH", token="wrong-guess") == {"cmd": "nok", "err": "DENIED"}
            assert client.ended_within(5)
    assert broker.request("GET", "/queues").status == 401, "without a token it is no guess"
    metrics = broker.request("GET", "/metrics", as_token("right")).body.decode()
    assert "penstock_logins_failed_total 6.0" in metrics
    assert broker.times_logged("login_failed") == 1
    assert "wrong-guess" not in broker.log()


def test_nothing_is_kept_of_a_body_whose_head_has_no_valid_token(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=right")
    with broker.connect() as connection:
        connection.send(b"POST /messages/q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nfirst bytes")
        assert connection.read_response().status == 401, "before the body is there"
        assert connection.ended_within(5)


def test_a_client_without_a_token_sends_short_lines_only(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=right")
    with LineClient(broker.lines) as guest:
        guest.send(b"x" * 100_000)
        assert guest.hear() == {"cmd": "nok", "err": "TOO_LARGE"}
    with LineClient(broker.lines) as client:
        client.say({"cmd": "AUTH", "token": "right"}, {"cmd": "PUB", "qname": "q", "message": "x" * 100_000})
        assert [client.hear()["cmd"] for _ in range(2)] == ["okauth", "ok"]


# ── Several processes ─────────────────────────────────────────────────────────────────────────────────────────


def test_two_workers_count_a_client_once(start_broker: StartBroker) -> None:
    quota, slice_ = 80, 10
    broker = start_broker(f"quota.address.published_per_second={quota}", flags=("--workers", "2", "--shards", "4"))
    broker.create_queue(QUEUE)
    connections = [broker.connect() for _ in range(12)]  # All of them reach one worker once in 2,000 times.
    began, accepted, left = time.monotonic(), 0, list(connections)
    while left:
        for connection in list(left):
            if connection.request("POST", f"/messages/{QUEUE}", body=b"x").status == 201:
                accepted += 1
            else:
                left.remove(connection)
    seconds = time.monotonic() - began
    for connection in connections:
        connection.close()
    assert quota * 0.9 <= accepted <= quota * (1 + seconds) + slice_ + 1
