"""How much later a channel of another shard gets a message: `python -m bench courier`.

Two workers with a shard each. A client waits at a channel, another one publishes; the time is from the request to
publish to the waiter's answer. It is measured for a channel in the shard of the topic and for one in the other shard,
in turns, on an idle broker and next to a client that publishes 1,000 messages a second to other topics.
"""

import contextlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path

from rich.progress import Progress

from bench.driver import HOST
from bench.servers import accepts, free_port, running, scratch_directory
from penstock.broker.shard_map import ShardMap

ROUNDS = 1_000
PER_TURN = 50
WARM_ROUNDS = 20
PAUSE_SECONDS = 0.002
BUSY_LIST, BUSY_PAUSE_SECONDS = 10, 0.01
SHARDS = 2

Found = dict[str, float]


def courier(progress: Progress, scratch: Path, rounds: int) -> Found:
    found: Found = {"rounds": rounds}
    task = progress.add_task("courier", total=4 * rounds)
    with scratch_directory(scratch) as directory, _broker(directory) as port:
        pairs = {name: _Pair(port, name) for name in ("here", "elsewhere")}
        for load in ("idle", "busy"):
            times: dict[str, list[float]] = {name: [] for name in pairs}
            with _busy(port) if load == "busy" else contextlib.nullcontext():
                for _ in range(rounds // PER_TURN):
                    for name, pair in pairs.items():
                        times[name] += [pair.round() for _ in range(PER_TURN)]
                        progress.advance(task, PER_TURN)
            for name, some in times.items():
                found |= {f"{load}_{name}_{key}": value for key, value in _milliseconds(some[WARM_ROUNDS:]).items()}
            added = found[f"{load}_elsewhere_p99_ms"] - found[f"{load}_here_p99_ms"]
            found[f"{load}_added_p99_ms"] = added
    return found


def _milliseconds(seconds: list[float]) -> Found:
    cuts = statistics.quantiles(seconds, n=100)
    return {"p50_ms": cuts[49] * 1e3, "p99_ms": cuts[98] * 1e3}


@contextlib.contextmanager
def _broker(directory: Path) -> Iterator[int]:
    port, workers = free_port(), ("--workers", str(SHARDS), "--shards", str(SHARDS))
    address = ("--http", f"{HOST}:{port}", "--lines", f"{HOST}:0", "--data", str(directory / "data"))
    command = [sys.executable, "-m", "penstock.cli", "serve", *address, *workers]
    with running(command, directory, lambda: accepts(port) and _is_healthy(port)):
        yield port


def _is_healthy(port: int) -> bool:
    """Whether the workers have found each other."""
    connection = HTTPConnection(HOST, port)
    connection.request("GET", "/health")
    is_healthy = connection.getresponse().status == HTTPStatus.OK
    connection.close()
    return is_healthy


class _Pair:
    """A client that waits at a channel, and one that publishes to its topic."""

    def __init__(self, port: int, name: str) -> None:
        shards = ShardMap(SHARDS)
        self._topic = f"{name}.new"
        home = shards.of_name(name)
        wanted = home if name == "here" else 1 - home
        channel = next(each for each in (f"{name}-{at}" for at in range(100)) if shards.of_name(each) == wanted)
        self._waiter, self._publisher = HTTPConnection(HOST, port), HTTPConnection(HOST, port)
        _ask(self._publisher, "PUT", f"/v1/channels/{channel}", {"topics": [self._topic]})
        self._wait = f"/v1/channels/{channel}/messages?wait=20"

    def round(self) -> float:
        """Seconds from the request to publish to the waiter's answer."""
        self._waiter.request("GET", self._wait)
        time.sleep(PAUSE_SECONDS)  # Until it waits.
        began = time.perf_counter()
        _ask(self._publisher, "POST", "/v1/publish", {"message": "x", "topics": [self._topic]})
        answer = self._waiter.getresponse()
        messages = json.loads(answer.read())
        seconds = time.perf_counter() - began
        assert len(messages) == 1, messages
        _ask(self._publisher, "POST", "/v1/confirm", {"id": messages[0]["id"]})
        return seconds


def _ask(connection: HTTPConnection, method: str, target: str, document: object) -> None:
    connection.request(method, target, json.dumps(document), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status in (200, 201), said


@contextlib.contextmanager
def _busy(port: int) -> Iterator[None]:
    """Publishes beside what is measured."""
    is_over = threading.Event()
    messages = [{"message": "x" * 200, "topics": [f"busy{at}.x"]} for at in range(BUSY_LIST)]

    def publish() -> None:
        connection = HTTPConnection(HOST, port)
        while not is_over.wait(BUSY_PAUSE_SECONDS):
            _ask(connection, "POST", "/v1/publish", messages)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
