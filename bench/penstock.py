"""Penstock and the bare server: the same loads, in the same order."""

import contextlib
import http.client
import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench import lines, nq, websocket
from bench.cores import on_load_core
from bench.driver import HOST, Count
from bench.load import (
    CONNECTIONS,
    FILL_ROUND,
    QUEUE,
    consume_rate,
    fill,
    publish_alone,
    publish_paced,
    publish_rate,
)
from bench.servers import accepts, begin, end, free_port, running, scratch_directory, wait_until_ready
from bench.targets import IN_FLIGHT, Figures, Plan, Target, check_supply, program

# Messages needed for each second of consuming: more than any run has consumed.
PAIRS_PER_SECOND_MAX = 160_000
PULLED_PER_SECOND_MAX = 1_000_000
NQ_CONNECTIONS = 8
HEALTH_SECONDS_MAX = 2.0
RECOVERY_SECONDS_MAX = 600.0
SETTINGS = {"retention_timeout": 86400, "visibility_timeout": 30, "message_deduplication": False}


@dataclass
class Broker:
    """A broker under test. It can be stopped, killed and restarted on the same data."""

    directory: Path
    options: tuple[str, ...] = ()
    port: int = 0
    lines_port: int = 0
    tls: ssl.SSLContext | None = None
    process: subprocess.Popen[bytes] | None = None
    is_pinned: bool = True  # To the core of the server. Several workers are to use all cores.
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self) -> None:
        """Start the broker and wait until it reports that it is healthy."""
        server = find_penstock()
        assert server is not None
        self.port, self.lines_port = free_port(), free_port()
        command = [server, "serve", "--data", self.directory / "data", "--http", f"{HOST}:{self.port}"]
        command += ["--lines", f"{HOST}:{self.lines_port}", *self.options]
        log = self.directory / "output.log"
        self.process = begin(command, log, environment=self.environment, pinned=self.is_pinned)
        wait_until_ready(self.process, self.is_well, log, RECOVERY_SECONDS_MAX)

    def is_well(self) -> bool:
        try:
            status, body = ask(self.port, "GET", "/health", tls=self.tls)
        except OSError:
            return False
        return status == 200 and body.strip() == b"green"

    def end(self) -> None:
        if self.process is not None:
            end(self.process)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def waiting(self, name: str) -> int:
        """How many messages the queue holds."""
        status, answer = ask(self.port, "GET", f"/queues/{name}")
        if status != 200:
            raise RuntimeError(f"GET /queues/{name}: {status} {answer.decode(errors='replace')}")
        return int(json.loads(answer)["status"]["messages"])

    def make_queue(self, name: str, **settings: object) -> None:
        body = json.dumps(SETTINGS | settings).encode()
        status, answer = ask(self.port, "PUT", f"/queues/{name}", body, self.tls)
        if status != 201:
            raise RuntimeError(f"PUT /queues/{name}: {status} {answer.decode(errors='replace')}")


def ask(
    port: int,
    method: str,
    path: str,
    body: bytes | None = None,
    tls: ssl.SSLContext | None = None,
    kind: str = "application/json",
) -> tuple[int, bytes]:
    """One request that is not part of a load."""
    connection = http.client.HTTPConnection(HOST, port, timeout=HEALTH_SECONDS_MAX)
    if tls:
        connection = http.client.HTTPSConnection(HOST, port, timeout=HEALTH_SECONDS_MAX, context=tls)
    try:
        connection.request(method, path, body, {"Content-Type": kind} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"no answer in HTTP: {error!r}") from error
    finally:
        connection.close()


@contextlib.contextmanager
def broker(scratch: Path, *options: str, tls: ssl.SSLContext | None = None) -> Iterator[Broker]:
    with scratch_directory(scratch) as directory:
        running_broker = Broker(directory, options, tls=tls)
        try:
            running_broker.start()
            yield running_broker
        finally:
            running_broker.end()


def measure_penstock(plan: Plan) -> Figures:
    with broker(plan.scratch) as penstock:
        penstock.make_queue(QUEUE)
        return measure_http(penstock.port, plan)


def measure_bare(plan: Plan) -> Figures:
    port = free_port()
    with scratch_directory(plan.scratch) as directory:
        command = [sys.executable, "-m", "bench.bare", str(port), directory]
        with running(command, directory, lambda: accepts(port)):
            return measure_http(port, plan)


def measure_http(port: int, plan: Plan) -> Figures:
    """Run all loads on one server. The messages it consumes are those published before."""
    warm, seconds = plan.warm_seconds, plan.seconds
    publish = on_load_core(publish_rate, port, CONNECTIONS, warm, seconds)
    consume = on_load_core(consume_rate, port, CONNECTIONS, warm, seconds)
    check_supply(publish.with_warm_up, consume)
    half = publish.per_second / 2
    half_rate = on_load_core(publish_paced, port, CONNECTIONS, half, warm, seconds)
    alone = on_load_core(publish_alone, port, warm, seconds)
    return Figures(publish, consume, half_rate, alone)


def measure_websocket(plan: Plan) -> Figures:
    with broker(plan.scratch) as penstock:
        penstock.make_queue(QUEUE)
        warm, seconds, port = plan.warm_seconds, plan.seconds, penstock.port
        publish = on_load_core(websocket.post_rate, port, IN_FLIGHT, warm, seconds)
        stored = stock_up(penstock, plan, publish, PAIRS_PER_SECOND_MAX)
        consume = on_load_core(websocket.finish_rate, port, IN_FLIGHT, warm, seconds)
        check_supply(stored, consume)
        return Figures(publish, consume)


def measure_lines(plan: Plan) -> Figures:
    with broker(plan.scratch) as penstock:
        penstock.make_queue(QUEUE)
        warm, seconds, port = plan.warm_seconds, plan.seconds, penstock.lines_port
        publish = on_load_core(lines.publish_rate, port, IN_FLIGHT, warm, seconds)
        stored = stock_up(penstock, plan, publish, PAIRS_PER_SECOND_MAX)
        consume = on_load_core(lines.acknowledge_rate, port, IN_FLIGHT, warm, seconds)
        check_supply(stored, consume)
        return Figures(publish, consume)


def measure_nq(plan: Plan, consume_rate: Callable[[int, int, float, float], Count]) -> Figures:
    with broker(plan.scratch) as penstock:
        # The first post creates the queue, which keeps its messages for other receivers.
        warm, seconds, port = plan.warm_seconds, plan.seconds, penstock.port
        publish = on_load_core(nq.post_rate, port, NQ_CONNECTIONS, warm, seconds)
        stored = stock_up(penstock, plan, publish, PULLED_PER_SECOND_MAX)
        consume = on_load_core(consume_rate, port, NQ_CONNECTIONS, warm, seconds)
        check_supply(stored, consume)
        return Figures(publish, consume)


def stock_up(penstock: Broker, plan: Plan, publish: Count, per_second: int) -> int:
    """Publish more messages if there are not enough to consume; return how many there are."""
    missing = int(per_second * (plan.warm_seconds + plan.seconds)) - publish.with_warm_up
    rounds = max(0, -(-missing // FILL_ROUND))
    if rounds:
        on_load_core(fill, penstock.port, QUEUE, rounds * FILL_ROUND)
    return publish.with_warm_up + rounds * FILL_ROUND


def find_penstock() -> Path | None:
    beside_interpreter = Path(sys.executable).parent / "penstock"
    return beside_interpreter if beside_interpreter.exists() else program("penstock")


TARGETS = (
    Target("penstock", "Penstock, mqs", measure_penstock, find_penstock),
    Target(
        "penstock-websocket",
        "Penstock, WebSocket",
        measure_websocket,
        find_penstock,
        note="one connection: posts answered when synced; 256 fetches, each with its finish, answered too",
    ),
    Target(
        "penstock-lines",
        "Penstock, JSON lines",
        measure_lines,
        find_penstock,
        note="one connection: PUB; FET and ACK",
    ),
    Target(
        "penstock-nq",
        "Penstock, NQ 8 of 100, pull alone",
        lambda plan: measure_nq(plan, nq.pull_rate),
        find_penstock,
        note="8 connections with a request of 100 messages each: 800 in flight; a pull is not acknowledged",
    ),
    Target(
        "penstock-nq-results",
        "Penstock, NQ 8 of 100, results",
        lambda plan: measure_nq(plan, nq.result_rate),
        find_penstock,
        note="800 in flight; every pull stores the results of the one before, which acknowledges it",
    ),
    Target(
        "bare",
        "bare server, the limit",
        measure_bare,
        lambda: Path(sys.executable),
        note="uvloop and httptools, hand-wired, with the same group commit and no engine",
    ),
)
