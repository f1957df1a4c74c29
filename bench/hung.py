"""What clients notice of a worker that hangs: `python -m bench hung`.

One of three workers is stopped with SIGSTOP, under traffic that does not need it: publishes to queues of the worker
that has accepted the connection, `/health` and `/metrics` on connections of the others, and new connections. The
times begin when it is stopped, and end when it is replaced. Each round has a broker of its own.
"""

import json
import os
import signal
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from rich.progress import Progress

from bench.driver import HOST
from bench.penstock import Broker
from bench.servers import scratch_directory
from penstock.broker.shard_map import ShardMap
from penstock.cluster.links.mesh import owner_of

ROUNDS = 5
WORKERS, SHARDS, HUNG = 3, 6, 1
SILENCE_SECONDS = 3.0
PUBLISHERS = 8
DEALT = 1000  # Connections, to see how they are dealt out.
ALONE_SECONDS = 2.0  # Before the worker is stopped, for comparison.
PAUSE_SECONDS = 0.002
SECONDS_MAX = 60.0

Found = dict[str, float]
Times = dict[str, list[float]]


def hung(progress: Progress, scratch: Path, rounds: int) -> Found:
    times: dict[str, Times] = {"alone": defaultdict(list), "hung": defaultdict(list)}
    replaced, largest = [], []
    task = progress.add_task("hung", total=rounds)
    for _ in range(rounds):
        with scratch_directory(scratch) as directory:
            options = ("--workers", str(WORKERS), "--shards", str(SHARDS))
            silence = ("--set", f"worker_silence_seconds={SILENCE_SECONDS}")
            broker = Broker(directory, (*options, *silence), is_pinned=False)
            broker.start()
            try:
                _wait_until_all_listen(directory / "output.log")
                largest.append(_largest_share(broker))
                replaced.append(_round(broker, times))
            finally:
                broker.end()
        progress.advance(task)
    found = {
        f"{phase}_{name}_{key}_ms": value * 1000
        for phase, by_name in times.items()
        for name, measured in by_name.items()
        for key, value in _figures(measured).items()
    }
    return {
        "rounds": rounds,
        "silence_seconds": SILENCE_SECONDS,
        "replaced_seconds_max": max(replaced),
        "replaced_seconds_median": statistics.median(replaced),
        "largest_share_of_connections": max(largest),
        **found,
    }


def _figures(measured: list[float]) -> Found:
    ordered = sorted(measured)
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[len(ordered) * 99 // 100],
        "max": ordered[-1],
    }


class Client:
    """A connection, and the worker that has accepted it."""

    def __init__(self, broker: Broker) -> None:
        self._connection = HTTPConnection(HOST, broker.port, timeout=SECONDS_MAX)
        members = json.loads(self.ask("GET", "/v1/cluster"))["members"]
        self.worker: int = next(each["number"] for each in members if each["this"])

    def ask(self, method: str, target: str, body: bytes | None = None) -> bytes:
        self._connection.request(method, target, body)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 300 and target != "/health":
            raise RuntimeError(f"{method} {target}: {answer.status} {data!r}")
        return data

    def close(self) -> None:
        self._connection.close()


def _wait_until_all_listen(log: Path) -> None:
    """A broker is healthy a moment before its last worker listens."""
    while '"event": "listening"' not in log.read_text():
        time.sleep(PAUSE_SECONDS)


def _largest_share(broker: Broker) -> float:
    """Of the connections that one worker got, 1 for as many as the others."""
    clients = [Client(broker) for _ in range(DEALT)]
    for each in clients:
        each.close()
    return max(Counter(each.worker for each in clients).values()) * WORKERS / DEALT


def _round(broker: Broker, times: dict[str, Times]) -> float:
    """Returns how long the stopped worker was missing."""
    queues = _make_queues(broker)
    clients = [each for each in (Client(broker) for _ in range(4 * PUBLISHERS)) if each.worker != HUNG]
    watch, health, metrics, *publishers = clients
    phase, over = ["alone"], threading.Event()

    def repeat(name: str, act: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            while not over.is_set():
                begun = time.perf_counter()
                act()
                times[phase[0]][name].append(time.perf_counter() - begun)
                time.sleep(PAUSE_SECONDS)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def publish(client: Client) -> None:
        client.ask("POST", f"/messages/{queues[client.worker]}", b"x" * 200)

    threads = [repeat("publish", partial(publish, each)) for each in publishers[:PUBLISHERS]]
    threads.append(repeat("health", lambda: health.ask("GET", "/health")))
    threads.append(repeat("metrics", lambda: metrics.ask("GET", "/metrics")))
    threads.append(repeat("new_connection", lambda: Client(broker).close()))
    time.sleep(ALONE_SECONDS)
    process = _processes(broker)[HUNG]
    phase[0] = "hung"
    os.kill(process, signal.SIGSTOP)
    begun = time.perf_counter()
    try:
        while process in _processes(broker) or watch.ask("GET", "/health") != b"green":
            if time.perf_counter() - begun > SECONDS_MAX:
                raise RuntimeError("the worker was not replaced")
            time.sleep(PAUSE_SECONDS)
        return time.perf_counter() - begun
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _make_queues(broker: Broker) -> dict[int, str]:
    """One in each worker."""
    shards = ShardMap(SHARDS)
    queues = {owner_of(shards.of_name(name), WORKERS): name for name in map("bench-{}".format, range(32))}
    for name in queues.values():
        broker.make_queue(name)
    return queues


def _processes(broker: Broker) -> list[int]:
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text()
    return [int(child) for child in children.split()]
