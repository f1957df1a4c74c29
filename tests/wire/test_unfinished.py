"""Messages and requests that are never finished cost nobody else anything for long."""

from __future__ import annotations

import json
import socket
from contextlib import closing

import pytest

from penstock.limits import FAREWELL_BYTES_MAX
from tests.support.broker import Broker, StartBroker
from tests.support.ws_client import RawWs

MEGABYTE = 1 << 20


@pytest.mark.parametrize("begun", [b"", b'{"type"'], ids=["an empty part", "a part"])
def test_a_message_that_is_not_finished_in_time_ends_the_connection_whatever_pings_come(
    start_broker: StartBroker, begun: bytes
) -> None:
    broker = start_broker("http.slow_client_seconds=1")
    with RawWs(broker.http) as client:
        assert client.hear()["type"] == "hello"
        client.send_frame(begun, final=False)
        opcode, payload = 0, b""
        while opcode != 8:
            client.send_frame(b"still here", opcode=9)
            opcode, payload = client.read_frame()
        assert payload == (1008).to_bytes(2, "big") + b"the message was not complete after 1 s"


def test_the_connection_that_holds_most_of_unfinished_messages_is_closed_for_the_others(
    start_broker: StartBroker,
) -> None:
    broker = start_broker(f"http.body_bytes_max={2 * MEGABYTE}", f"http.buffered_bytes_max={4 * MEGABYTE}")
    broker.create_queue("q")
    post = {"type": "post", "queue": "q", "message": "x" * (MEGABYTE - 100), "label": 7, "notify": ["sync"]}
    message = json.dumps(post)
    with RawWs(broker.http) as greedy, RawWs(broker.http) as modest:
        assert (greedy.hear()["type"], modest.hear()["type"]) == ("hello", "hello")
        for opcode in (1, 0, 0):
            greedy.send_frame(b"x" * MEGABYTE, opcode=opcode, final=False)
        greedy.send_frame(b"", opcode=9)
        assert greedy.read_frame() == (10, b"")  # All of it has come.
        modest.send_frame(message[:1000].encode(), final=False)
        modest.send_frame(message[1000:].encode() + b" " * 200, opcode=0, final=False)
        assert greedy.read_close()[0] == 1013
        modest.send_frame(b" ", opcode=0)
        assert modest.hear()["type"] == "notice"


@pytest.mark.parametrize("piece", [b"a: " + b"b" * 1000 + b"\r\n", b"b" * 1000], ids=["many trailers", "a long one"])
def test_trailers_without_end_are_refused_and_then_cut_off(broker: Broker, piece: bytes) -> None:
    with closing(socket.create_connection(broker.http, 60)) as client:
        client.sendall(b"POST /messages/q HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n")
        client.sendall(piece * 100)
        assert client.recv(12) == b"HTTP/1.1 431"
        with pytest.raises(ConnectionError):
            client.sendall(piece * (FAREWELL_BYTES_MAX // 1000 + 64_000))  # Some of it is on its way.
