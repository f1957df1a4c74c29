"""What a web page in a browser on the broker's machine can do to it: nothing."""

from __future__ import annotations

import json
import secrets
import socket

import pytest

from tests.support.broker import Broker, StartBroker
from tests.support.line_client import LineClient
from tests.support.ws_client import WsClient, handshake

CALLS = [
    ("GET", "/health", b""),
    ("GET", "/metrics", b""),
    ("GET", "/openapi.json", b""),
    ("GET", "/queues", b""),
    ("GET", "/messages/{queue}", b""),
    ("GET", "/status/{queue}", b""),
    ("GET", "/v1/search?queue={queue}", b""),
    ("GET", "/v1/events?from=0", b""),
    ("GET", "/nowhere", b""),
    ("POST", "/messages/{queue}", b"hello"),
    ("POST", "/queues/{queue}", b"{}"),
    ("POST", "/post", b'{"sender": "s", "{queue}": ["hello"]}'),
    ("POST", "/pull", b'{"receiver": "r", "{queue}": {}}'),
    ("POST", "/v1/publish?topic={queue}", b"hello"),
    ("POST", "/v1/redrive", b'{"from": "{queue}"}'),
    ("DELETE", "/queues/{queue}", b""),
    ("OPTIONS", "/messages/{queue}", b""),
    ("PUT", "/v1/queues/{queue}", b"{}"),
]
FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Host": "evil.example"},
    {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
]


@pytest.fixture
def queue(broker: Broker) -> str:
    name = f"web-{secrets.token_hex(6)}"
    broker.create_queue(name)
    assert broker.request("POST", f"/messages/{name}", body=b"first").status == 201
    return name


@pytest.mark.parametrize("fields", FOREIGN, ids=str)
def test_a_foreign_page_is_refused_on_every_path_and_changes_nothing(
    broker: Broker, queue: str, fields: dict[str, str]
) -> None:
    text = {"Content-Type": "text/plain"}
    with broker.connect() as connection:
        for method, target, body in CALLS:
            given = (target.replace("{queue}", queue), fields | text, body.replace(b"{queue}", queue.encode()))
            for _ in range(3):  # A head that was seen before is judged as it was.
                answer = connection.request(method, *given)
                assert answer.status == 403, (method, target)
                assert "http." in answer.json()["error"]
        assert connection.request("GET", f"/messages/{queue}").body == b"first"
        assert connection.request("GET", f"/messages/{queue}").status == 204


@pytest.mark.parametrize("fields", FOREIGN, ids=str)
@pytest.mark.parametrize("target", ["/connect", "/connect/"])
def test_a_foreign_page_opens_no_websocket(broker: Broker, target: str, fields: dict[str, str]) -> None:
    with broker.connect() as connection:
        connection.send(handshake(target, **fields))
        assert connection.read_response().status == 403


def test_fields_that_were_let_in_let_no_others_in(broker: Broker, queue: str) -> None:
    with broker.connect() as connection:
        for _ in range(3):
            assert connection.request("POST", f"/messages/{queue}", body=b"x").status == 201
            foreign = connection.request("POST", f"/messages/{queue}", {"Host": "evil.example"}, b"x")
            assert foreign.status == 403


def test_with_tokens_any_name_may_be_used_and_foreign_pages_are_refused_still(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=hush")
    token = {"Authorization": "Bearer hush"}
    assert broker.request("GET", "/queues", token | {"Host": "broker.lan"}).status == 200
    assert broker.request("GET", "/queues", token | {"Origin": "https://evil.example"}).status == 403


def test_the_settings_let_names_and_pages_in(start_broker: StartBroker) -> None:
    broker = start_broker("http.hosts=broker.lan", "http.origins=https://app.example.org")
    assert broker.request("GET", "/queues", {"Host": "broker.lan:7843"}).status == 200
    page = {"Origin": "https://app.example.org", "Sec-Fetch-Site": "cross-site"}
    assert broker.request("GET", "/queues", page).status == 200
    with WsClient(broker.http, **page) as client:
        assert client.hear()["type"] == "hello"


# The line port

COMMAND = json.dumps({"cmd": "PUB", "qname": "web-lines", "message": "from a page"}).encode() + b"\n"


@pytest.mark.parametrize(
    "request_line",
    [
        *(b"POST / HTTP/1.1", b"GET /x HTTP/1.1", b"PUT / HTTP/1.0", b"OPTIONS * HTTP/1.1", b"M-SEARCH * HTTP/1.1"),
        *(b"PRI * HTTP/2.0", b"post / HTTP/1.1", b"x-own /a b HTTP/1.1", b"POST /" + b"x" * 3_000_000),
    ],
    ids=lambda line: line[:20].decode(),
)
@pytest.mark.parametrize("piece_bytes", [1 << 22, 7])
def test_an_http_request_on_the_line_port_carries_nothing_out(
    broker: Broker, request_line: bytes, piece_bytes: int
) -> None:
    request = request_line + b"\r\nHost: localhost\r\n\r\n" + COMMAND * 2
    if piece_bytes < 100:
        request = request[:200] + COMMAND
    with LineClient(broker.lines) as client:
        try:
            for start in range(0, len(request), piece_bytes):
                client.send(request[start : start + piece_bytes])
            told = read_to_end(client)
        except ConnectionError:
            told = b""  # It was closed while there was more to send.
        assert b"cmd" not in told
    assert broker.request("GET", "/queues/web-lines").status == 404


def test_http_on_the_line_port_is_told_where_to_go(broker: Broker) -> None:
    with socket.create_connection(broker.lines, timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        told = b"".join(iter(lambda: connection.recv(65536), b""))
    assert told.startswith(b"HTTP/1.1 400 ")
    assert b"http.address" in told


def test_tls_on_the_line_port_is_closed_without_a_word(broker: Broker) -> None:
    with LineClient(broker.lines) as client:
        client.send(b"\x16\x03\x01\x02\x00\x01\x00\n" + COMMAND)
        assert read_to_end(client) == b""
    assert broker.request("GET", "/queues/web-lines").status == 404


def test_a_command_that_speaks_of_http_is_a_command(broker: Broker) -> None:
    name = f"web-{secrets.token_hex(6)}"
    with LineClient(broker.lines) as client:
        assert client.ask(cmd="PUB", qname=name, message="GET / HTTP/1.1")["cmd"] == "ok"
        client.send(b"hello world\n")
        assert client.hear()["err"] == "BAD_JSON"
        client.send(b"GET / HTTP/1.1\n")  # Not at the beginning: a line like any other.
        assert client.hear()["err"] == "BAD_JSON"


def read_to_end(client: LineClient) -> bytes:
    told = b""
    while piece := client._socket.recv(65536):
        told += piece
    return told
