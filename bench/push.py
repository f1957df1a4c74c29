"""How fast messages are pushed to an endpoint, alone and next to endpoints that fail: `python -m bench push`.

The endpoint runs on the core of the load. A dead endpoint refuses connections; a silent one accepts them and
answers nothing.
"""

import asyncio
import json
import socket
import statistics
import time
from pathlib import Path
from typing import NamedTuple, cast

import httptools
import uvloop
from rich.progress import Progress

from bench import machine
from bench.cores import on_load_core
from bench.driver import HOST, StoppedError
from bench.load import FILL_ROUND, fill
from bench.penstock import Broker, ask, broker
from bench.servers import free_port

Found = dict[str, float]

MESSAGES = 32_000
LEFT_MESSAGES = 8_000  # For each endpoint that does not answer.
ROUNDS = 5
IN_FLIGHT = (1, 8, 64)
MANY = 64
SECONDS_MAX = 120.0
SILENCE_SECONDS = 0.5  # How long the broker waits for a silent endpoint.
BACKLOG = 1024
# Frequent failures, so that their cost is visible.
SETTINGS = ("push.private_addresses=allow", "push.retry_seconds=0.05", "push.circuit_seconds_max=0.2")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Pushed(NamedTuple):
    per_second: float
    cpu_microseconds: float  # The broker's, for each message.


def push(progress: Progress, scratch: Path, messages: int) -> Found:
    messages = -(-messages // FILL_ROUND) * FILL_ROUND
    options = [part for setting in SETTINGS for part in ("--set", setting)]
    found: Found = {"messages": messages}
    task = progress.add_task("pushing", total=None)
    with broker(scratch, *options) as penstock:
        for in_flight in IN_FLIGHT:
            some = LEFT_MESSAGES if in_flight == 1 else messages
            found[f"in_flight_{in_flight}_per_second"] = deliver(penstock, some, in_flight).per_second
        alone, beside = [], []
        for _ in range(ROUNDS):
            progress.update(task, description="alone")
            alone.append(deliver(penstock, messages, MANY))
            progress.update(task, description="beside a dead and a silent endpoint")
            beside.append(deliver_beside_the_dead(penstock, messages))
    progress.remove_task(task)
    for name, rounds in (("alone", alone), ("beside_dead", beside)):
        found[f"{name}_per_second"] = statistics.median(each.per_second for each in rounds)
        found[f"{name}_cpu_microseconds_each"] = statistics.median(each.cpu_microseconds for each in rounds)
    return found | {"beside_dead_ratio": found["beside_dead_per_second"] / found["alone_per_second"]}


def deliver(penstock: Broker, messages: int, in_flight: int) -> Pushed:
    """Push messages that were published before their endpoint started."""
    port = free_port()
    make_channel(penstock, "good", port, in_flight, SECONDS_MAX)
    on_load_core(fill, penstock.port, "good", messages)
    before = machine.cpu_seconds(penstock.pid)
    rate = on_load_core(serve, port, messages)
    used = machine.cpu_seconds(penstock.pid) - before
    remove_channel(penstock, "good")
    return Pushed(rate, used / messages * 1e6)


def deliver_beside_the_dead(penstock: Broker, messages: int) -> Pushed:
    with socket.create_server((HOST, 0), backlog=BACKLOG) as silent:
        for name, port in (("dead", free_port()), ("silent", int(silent.getsockname()[1]))):
            make_channel(penstock, name, port, MANY, SILENCE_SECONDS)
            on_load_core(fill, penstock.port, name, LEFT_MESSAGES)
        pushed = deliver(penstock, messages, MANY)
        for name in ("dead", "silent"):
            remove_channel(penstock, name)
    return pushed


def make_channel(penstock: Broker, name: str, port: int, in_flight: int, seconds: float) -> None:
    push = {"url": f"http://{HOST}:{port}/", "max_in_flight": in_flight, "timeout": seconds}
    expect(penstock, 201, "PUT", name, json.dumps({"topics": [f"{name}.*"], "push": push}).encode())


def remove_channel(penstock: Broker, name: str) -> None:
    expect(penstock, 204, "DELETE", name)


def expect(penstock: Broker, wanted: int, method: str, channel: str, body: bytes | None = None) -> None:
    status, answer = ask(penstock.port, method, f"/v1/channels/{channel}", body)
    if status != wanted:
        raise StoppedError(f"{method} /v1/channels/{channel}: {status} {answer.decode(errors='replace')}")


def serve(port: int, messages: int) -> float:
    """Receive this many messages, and return how many arrived per second."""

    async def run() -> float:
        endpoint = Endpoint(messages)
        server = await asyncio.get_running_loop().create_server(lambda: Taking(endpoint), HOST, port, backlog=BACKLOG)
        await asyncio.wait_for(endpoint.done, SECONDS_MAX)
        server.close()
        return messages / (endpoint.last - endpoint.first)

    return uvloop.run(run())


class Endpoint:
    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.taken = 0
        self.first = self.last = 0.0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> None:
        self.taken += 1
        if self.taken == 1:
            self.first = time.perf_counter()
        if self.taken == self.messages:
            self.last = time.perf_counter()
            self.done.set_result(None)


class Taking(asyncio.Protocol):
    """One connection from the broker."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        self._transport.write(OK)
        self._endpoint.take()
