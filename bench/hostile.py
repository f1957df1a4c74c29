"""What one hostile connection costs an honest client: `python -m bench.hostile`.

An honest client posts durable messages with one request in flight, first alone and then next to one attack of each
kind. The attack and the client are separate processes. The goal: next to any attack the client keeps half of its
rate, and its p99 is at most 25 ms.

An attack is a row in `ATTACKS`: a name, and a function that runs until its process is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench import machine, report
from bench.cores import LOAD_CORE, on_load_core
from bench.driver import HOST, Latency, StoppedError, connect, one_at_a_time
from bench.load import Publish
from bench.penstock import Broker
from bench.servers import scratch_directory
from bench.websocket import frame

RATE_SHARE_MIN = 0.5
P99_MS_MAX = 25.0
TOKEN = "bench-token"
QUEUES = 10_000
STOCK = 100_000  # Messages for the searches to read.
PARTS = 1000
BODY = b"x" * 200
SEND_BYTES = 1 << 20
READ_BYTES = 1 << 20
CROWD = 100  # Connections of an attack that consists of many idle ones.
SETTINGS = b'{"retention_timeout":86400,"visibility_timeout":30,"message_deduplication":false}'


class Ports(NamedTuple):
    http: int
    lines: int


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


# ── Attacks ───────────────────────────────────────────────────────────────────────────────────────────────────


def flood(port: int, payload: bytes, opening: bytes = b"", *, reads: bool = True, again: bool = True) -> None:
    """Send the same bytes for ever, as fast as the broker reads them, and discard the answers.

    `opening` is sent first on each connection. `again`: open a new connection when one ends.
    """
    block = payload * max(1, SEND_BYTES // len(payload))
    for _ in itertools.count() if again else range(1):
        with contextlib.suppress(OSError), connect(port) as link:
            _pour(link, opening, block, reads=reads)


def _pour(link: socket.socket, opening: bytes, block: bytes, *, reads: bool) -> None:
    waiting = [link] if reads else []
    unsent = memoryview(opening + block)
    while True:
        readable, writable, _ = select.select(waiting, [link], [])
        if readable and not link.recv(READ_BYTES):
            return
        if writable:
            unsent = unsent[link.send(unsent) :] or memoryview(block)


def trickle(port: int, opening: bytes, payload: bytes, crowd: int = CROWD) -> None:
    """Many connections, each of which sends a byte now and then."""
    links = [connect(port) for _ in range(crowd)]
    for link in links:
        link.send(opening)
    for byte in itertools.cycle(payload):
        for link in links:
            with contextlib.suppress(OSError):
                link.send(bytes((byte,)))
        time.sleep(0.01)


def hold(port: int, opening: bytes, crowd: int = CROWD) -> None:
    """Many connections that send something once and then neither send nor read."""
    links = [connect(port, blocking=True) for _ in range(crowd)]
    for link in links:
        link.sendall(opening)
    select.select([], [], [])


def churn(port: int) -> None:
    """Connect and disconnect, again and again."""
    while True:
        with contextlib.suppress(OSError):
            connect(port, blocking=True).close()


MEGABYTE = request("POST", "/messages/attack", b"x" * (1 << 20))
CHUNKED = request("POST", "/messages/attack", b"", "Transfer-Encoding: chunked")
TINY_CHUNKS = CHUNKED + b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
TRAILERS = CHUNKED + b"0\r\n" + b"".join(b"t%d: x\r\n" % number for number in range(1000)) + b"\r\n"
GIANT_HEAD = request("GET", "/health", b"", *(f"X-{number}: {'x' * 20}" for number in range(700)))
UNFINISHED = b"\x01\xfe\xff\xff\0\0\0\0" + b"x" * 65_535

ATTACKS: dict[str, Callable[[Ports], None]] = {
    "requests without a token": lambda ports: flood(ports.http, request("GET", "/queues", token=None)),
    "requests for nothing": lambda ports: flood(ports.http, request("GET", "/nothing")),
    "health checks": lambda ports: flood(ports.http, request("GET", "/health", token=None)),
    "receives": lambda ports: flood(ports.http, request("GET", "/messages/attack")),
    "posts": lambda ports: flood(ports.http, request("POST", "/messages/attack", BODY)),
    "1 MB posts": lambda ports: flood(ports.http, MEGABYTE),
    "guessed tokens, HTTP": lambda ports: flood(ports.http, request("GET", "/queues", token="guess")),
    "guessed tokens, lines": lambda ports: flood(ports.lines, line(cmd="AUTH", token="guess")),
    "bad JSON lines": lambda ports: flood(ports.lines, b"{bad\n", AUTH),
    "line fetches": lambda ports: flood(ports.lines, line(cmd="FET", qname="attack"), AUTH),
    "WebSocket pings": lambda ports: flood(ports.http, PING, HANDSHAKE),
    "WebSocket bad JSON": lambda ports: flood(ports.http, frame(b"{bad"), HANDSHAKE),
    "searches": lambda ports: flood(ports.http, request("GET", "/v1/search?queue=stock&text=needle")),
    "searches by key": lambda ports: flood(ports.http, request("GET", "/v1/search?queue=stock&object=none")),
    "metrics": lambda ports: flood(ports.http, request("GET", "/metrics")),
    "lists of queues": lambda ports: flood(ports.http, request("GET", "/queues")),
    "lists of queues, native": lambda ports: flood(ports.http, request("GET", "/v1/queues?limit=1000")),
    "tiny chunks": lambda ports: flood(ports.http, TINY_CHUNKS),
    "trailers": lambda ports: flood(ports.http, TRAILERS),
    "giant heads": lambda ports: flood(ports.http, GIANT_HEAD),
    "unread answers": lambda ports: flood(ports.http, request("GET", "/queues"), reads=False),
    "unfinished frames": lambda ports: flood(ports.http, UNFINISHED, HANDSHAKE),
    "slow writers": lambda ports: trickle(ports.http, b"", MEGABYTE),
    "half-open requests": lambda ports: hold(ports.http, b"GET / HTTP/1.1\r\nHost: x\r\n"),
    "spectators": lambda ports: hold(ports.http, request("GET", "/v1/events?follow=true"), 50),
    "long polls": lambda ports: hold(
        ports.http, request("GET", "/messages/empty", b"", "X-MQS-MAX-WAIT-TIME: 20") * 16
    ),
    "connection churn": lambda ports: churn(ports.http),
}


def attack(name: str, ports: Ports) -> None:
    os.sched_setaffinity(0, {LOAD_CORE})
    os.nice(10)  # The honest client shares the core with it.
    ATTACKS[name](ports)


@contextlib.contextmanager
def under(name: str, ports: Ports) -> Iterator[None]:
    """Run an attack in a separate process."""
    command = [sys.executable, "-m", "bench.hostile", "--attack", name, "--ports", str(ports.http), str(ports.lines)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the attack {name!r} ended by itself")
    finally:
        process.kill()
        process.wait()


# ── The honest client ─────────────────────────────────────────────────────────────────────────────────────────


def honest(port: int, warm_seconds: float, seconds: float) -> Latency:
    conversation = Publish(request("POST", "/messages/honest", BODY))
    try:
        return one_at_a_time(port, conversation, warm_seconds=warm_seconds, seconds=seconds)
    except (StoppedError, OSError) as error:
        return Latency(seconds * 1e3, seconds * 1e3, seconds * 1e3, 0.0, 1, str(error))  # The client got no answer.


def prepare(ports: Ports, queues: int, stock: int) -> None:
    """Create queues to list and messages to search."""
    names = ["honest", "attack", "stock", "empty", *(f"queue-{number}" for number in range(queues))]
    with connect(ports.http, blocking=True) as link:
        for name in names:
            _ask(link, request("PUT", f"/queues/{name}", SETTINGS))
        part = b"--b\r\n\r\n" + BODY + b"\r\n"
        batch = part * PARTS + b"--b--\r\n"
        for _ in range(stock // PARTS):
            _ask(link, request("POST", "/messages/stock", batch, "Content-Type: multipart/mixed; boundary=b"))


def _ask(link: socket.socket, sent: bytes) -> None:
    """Send one request and read the whole answer; only its status is checked."""
    link.sendall(sent)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += link.recv(READ_BYTES)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head[9:11] == b"20", head
    length = next(
        (int(field[15:]) for field in head.lower().split(b"\r\n") if field.startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += link.recv(READ_BYTES)


def measure(broker: Broker, names: list[str], seconds: float, console: Console) -> dict[str, Latency]:
    ports = Ports(broker.port, broker.lines_port)
    found = {"nothing": on_load_core(honest, ports.http, 1.0, seconds)}
    for name in names:
        console.print(f"beside {name} …")
        with under(name, ports):
            found[name] = on_load_core(honest, ports.http, 1.0, seconds)
        console.print(f"{name}: {found[name].per_second:.0f}/s, p99 {found[name].p99_ms:.1f} ms")
    found["nothing, afterwards"] = on_load_core(honest, ports.http, 1.0, seconds)
    return found


def show(found: dict[str, Latency], console: Console) -> list[str]:
    """Print a table, and return the names of the attacks that missed the goal."""
    alone = (found["nothing"].per_second + found["nothing, afterwards"].per_second) / 2
    table = Table("beside", "posts/s", "share", "p50 ms", "p99 ms", "longest ms", "")
    failed = []
    for name, latency in found.items():
        share = latency.per_second / alone
        kept = share >= RATE_SHARE_MIN and latency.p99_ms <= P99_MS_MAX and not latency.errors
        if not kept:
            failed.append(name)
        figures = f"{latency.p50_ms:.2f}", f"{latency.p99_ms:.2f}", f"{latency.max_ms:.1f}"
        table.add_row(name, f"{latency.per_second:.0f}", f"{share:.0%}", *figures, "" if kept else "too slow")
    console.print(table)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help=f"all unless named: {', '.join(ATTACKS)}")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--stock", type=int, default=STOCK)
    parser.add_argument("--scratch", type=Path, default=Path(__file__).parent / "scratch")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--ports", type=int, nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.attack:
        attack(asked.attack, Ports(*asked.ports))
    console = Console(width=120)
    names = asked.names or list(ATTACKS)
    asked.scratch.mkdir(parents=True, exist_ok=True)
    with scratch_directory(asked.scratch) as folder:
        broker = Broker(folder, ("--set", f"auth.tokens={TOKEN}"))
        broker.start()
        try:
            prepare(Ports(broker.port, broker.lines_port), asked.queues, asked.stock)
            found = measure(broker, names, asked.seconds, console)
        finally:
            broker.end()
        facts = machine.facts(folder)
    failed = show(found, console)
    if not asked.names:
        figures = {name: {"per_second": each.per_second, "p99_ms": each.p99_ms} for name, each in found.items()}
        report.write_json(Path(__file__).parent / "hostile.json", {"machine": facts, "beside": figures})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
