"""What hostile clients do: each kind of attack is a row in `ATTACKS`, and `run` carries it out until it is killed.

A row says what each connection sends first, what it sends again and again, and whether it reads the answers. If the
broker closes a connection, another takes its place.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

from bench.driver import HOST
from bench.websocket import frame

HOSTILE_HOST = "127.0.0.2"  # So that quotas for addresses know whom they limit.
TOKEN = "hostile-token"
BODY = b"x" * 200
SEND_BYTES = 1 << 20
READ_BYTES = 1 << 20
TRICKLE_SECONDS = 0.01  # Between two bytes of each connection.
CONNECT_SECONDS_MAX = 5.0
POLL_SECONDS = 0.1
_RESET = struct.pack("ii", 1, 0)  # A closed connection must not occupy its port for a minute.


class Ports(NamedTuple):
    http: int
    lines: int


class Attack(NamedTuple):
    opening: bytes = b""
    payload: bytes = b""  # Sent again and again. Empty: the connection is held open.
    fresh: Callable[[int], bytes] | None = None  # Makes a payload that is another each time, by its number.
    reads: bool = True
    port: Literal["http", "lines"] = "http"
    trickles: bool = False  # The payload is sent byte by byte.
    churns: bool = False  # Connections are closed as soon as they are open.


def request(method: str, target: str, body: bytes = b"", *headers: str, token: str | None = TOKEN) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {HOST}", *headers]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def line(**command: object) -> bytes:
    return json.dumps(command).encode() + b"\n"


HANDSHAKE = request(
    "GET",
    "/connect/",
    b"",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
)
AUTH = line(cmd="AUTH", token=TOKEN)
PING = b"\x89\x80\0\0\0\0"
MEGABYTE = request("POST", "/messages/attack", b"x" * (1 << 20))
CHUNKED = request("POST", "/messages/attack", b"", "Transfer-Encoding: chunked")
TINY_CHUNKS = CHUNKED + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
TRAILERS = CHUNKED + b"0\r\n" + b"".join(b"t%d: x\r\n" % number for number in range(1000)) + b"\r\n"
GIANT_HEAD = request("GET", "/health", b"", *(f"X-{number}: {'x' * 20}" for number in range(700)))
UNFINISHED = b"\x01\xfe\xff\xff\0\0\0\0" + b"x" * 65_535
ENDLESS_TRAILERS = CHUNKED + b"1\r\nx\r\n0\r\n"
LONG_POLL = request("GET", "/messages/empty", b"", "X-MQS-MAX-WAIT-TIME: 20")


def tiny_parts(number: int) -> bytes:
    """A batch of 1,000 messages, each with a content type that was never there."""
    parts = b"".join([b"--b\r\nContent-Type: a/%d-%d\r\n\r\nx\r\n" % (number, each) for each in range(1000)])
    return request("POST", "/messages/attack", parts + b"--b--\r\n", "Content-Type: multipart/mixed; boundary=b")


def new_names(number: int) -> bytes:
    """A list of messages, each with a sender, topics and a content type that were never there."""
    messages = [
        {"sender": f"s{at}", "topics": [f"attack.{at}"], "mimeType": f"a/{at}", "message": "x"}
        for at in range(100 * number, 100 * number + 100)
    ]
    return request("POST", "/v1/publish", json.dumps(messages).encode(), "Content-Type: application/json")


def new_types(number: int) -> bytes:
    """Single messages, each with a content type that was never there."""
    return b"".join(
        [
            request("POST", "/messages/attack", b"x", f"Content-Type: a/{at}")
            for at in range(100 * number, 100 * number + 100)
        ]
    )


ATTACKS: dict[str, Attack] = {
    "requests without a token": Attack(payload=request("GET", "/queues", token=None)),
    "requests for nothing": Attack(payload=request("GET", "/nothing")),
    "receives": Attack(payload=request("GET", "/messages/attack")),
    "guessed tokens": Attack(payload=request("GET", "/queues", token="guess")),
    "1 MB posts": Attack(payload=MEGABYTE),
    "bad JSON": Attack(AUTH, b"{bad\n", port="lines"),
    "pings": Attack(HANDSHAKE, PING),
    "bad frames": Attack(HANDSHAKE, frame(b"{bad")),
    "searches": Attack(payload=request("GET", "/v1/search?queue=stock&text=needle")),
    "metrics": Attack(payload=request("GET", "/metrics")),
    "lists": Attack(payload=request("GET", "/v1/queues?limit=1000")),
    "spectators": Attack(request("GET", "/v1/events?follow=true"), reads=False),
    "half-open requests": Attack(b"GET / HTTP/1.1\r\nHost: x\r\n", reads=False),
    "slow readers": Attack(payload=request("GET", "/queues"), reads=False),
    "slow writers": Attack(payload=MEGABYTE, trickles=True),
    "long polls": Attack(LONG_POLL * 16, reads=False),
    "unfinished frames": Attack(HANDSHAKE, UNFINISHED),
    "trailers": Attack(payload=TRAILERS),
    "endless trailers": Attack(ENDLESS_TRAILERS, b"a: " + b"b" * 1000 + b"\r\n"),
    "multipart batches": Attack(fresh=tiny_parts),
    "new names": Attack(fresh=new_names),
    "new content types": Attack(fresh=new_types),
    "posts": Attack(payload=request("POST", "/messages/attack", BODY)),
    "tiny chunks": Attack(payload=TINY_CHUNKS),
    "giant heads": Attack(payload=GIANT_HEAD),
    "connection churn": Attack(churns=True),
}


def run(name: str, ports: Ports, connections: int) -> None:
    attack = ATTACKS[name]
    port = getattr(ports, attack.port)
    if attack.churns:
        _churn(port)
    elif attack.trickles:
        _trickle(port, attack.payload, connections)
    else:
        _Swarm(port, attack).run(connections)


def _connect(port: int) -> socket.socket:
    link = socket.create_connection((HOST, port), CONNECT_SECONDS_MAX, source_address=(HOSTILE_HOST, 0))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    link.setblocking(False)
    return link


def _churn(port: int) -> None:
    """Connect and disconnect, again and again."""
    while True:
        with contextlib.suppress(OSError):
            _connect(port).close()


def _trickle(port: int, payload: bytes, connections: int) -> None:
    """Each connection sends a byte now and then."""
    links = [_connect(port) for _ in range(connections)]
    for byte in itertools.cycle(payload):
        for link in links:
            with contextlib.suppress(OSError):
                link.send(bytes((byte,)))
        time.sleep(TRICKLE_SECONDS)


class _Swarm:
    """Connections that send as fast as the broker reads, and discard the answers."""

    def __init__(self, port: int, attack: Attack) -> None:
        self._port = port
        self._attack = attack
        payload = attack.payload
        self._block = memoryview(payload * max(1, SEND_BYTES // len(payload)) if payload else b"")
        self._poll = select.epoll()
        self._links: dict[int, socket.socket] = {}
        self._unsent: dict[int, memoryview] = {}
        self._made = itertools.count()

    def run(self, connections: int) -> None:
        while True:
            missing = connections - len(self._links)
            for _ in range(missing):
                with contextlib.suppress(OSError):
                    self._open()
            for descriptor, events in self._poll.poll(POLL_SECONDS):
                try:
                    self._turn(descriptor, events)
                except BlockingIOError:
                    continue
                except OSError:
                    self._close(descriptor)

    def _open(self) -> None:
        link = _connect(self._port)
        descriptor = link.fileno()
        self._links[descriptor] = link
        self._unsent[descriptor] = memoryview(self._attack.opening) or self._next()
        self._poll.register(descriptor, select.EPOLLOUT | select.EPOLLRDHUP | self._reading)

    def _next(self) -> memoryview:
        fresh = self._attack.fresh
        return memoryview(fresh(next(self._made))) if fresh else self._block

    @property
    def _reading(self) -> int:
        return select.EPOLLIN if self._attack.reads else 0

    def _turn(self, descriptor: int, events: int) -> None:
        link = self._links[descriptor]
        if events & (select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR):
            self._close(descriptor)
            return
        if events & select.EPOLLIN:
            link.recv(READ_BYTES)
        if events & select.EPOLLOUT:
            unsent = self._unsent[descriptor]
            unsent = unsent[link.send(unsent) :] or self._next()
            self._unsent[descriptor] = unsent
            if not unsent:
                self._poll.modify(descriptor, select.EPOLLRDHUP | self._reading)

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        del self._unsent[descriptor]
        self._links.pop(descriptor).close()
