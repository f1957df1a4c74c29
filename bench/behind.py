"""How far behind is a reader that follows one queue, while another shard is busy with what it leaves out?

A broker with two shards, once in one process and once in two. One queue gets a message every few milliseconds; the
other shard gets as many as it takes. The reader gets the events of the first queue as JSON lines. A line is behind by
the time from the answer to the publisher, when the message is on the disk.
"""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.progress import Progress

from bench.cores import on_load_core
from bench.driver import HOST, SILENCE_SECONDS_MAX, StoppedError
from bench.load import CONNECTIONS, QUEUE, publish_rate
from bench.penstock import Broker
from bench.servers import scratch_directory
from bench.workers import make_queues
from penstock.broker.shard_map import ShardMap

Found = dict[str, float]

SHARDS = 2
WARM_SECONDS, SECONDS = 1.0, 8.0
PAUSE_SECONDS = 0.005  # Between two messages for the reader.


def behind(progress: Progress, scratch: Path) -> Found:
    found: Found = {}
    for workers in (1, 2):
        task = progress.add_task(f"a reader of one queue, {workers} processes", total=None)
        with scratch_directory(scratch) as directory:
            options = ("--workers", str(workers), "--shards", str(SHARDS))
            broker = Broker(directory, options, is_pinned=False)
            try:
                broker.start()
                found |= {f"behind_{workers}_{name}": value for name, value in _measured(broker).items()}
            finally:
                broker.end()
        progress.remove_task(task)
    return found


def _measured(broker: Broker) -> Found:
    quiet = _name_in_another_shard(QUEUE)
    make_queues(broker, QUEUE, quiet)
    seen: dict[int, float] = {}
    lines = _lines(broker.port, quiet)
    next(lines)  # It follows.
    reader = threading.Thread(target=_read, args=(lines, seen), daemon=True)
    reader.start()
    with ThreadPoolExecutor(1) as load:
        busy = load.submit(on_load_core, publish_rate, broker.port, CONNECTIONS, WARM_SECONDS, SECONDS)
        answered = _publish(broker.port, quiet, WARM_SECONDS + SECONDS)
        per_second = busy.result().per_second
    reader.join(SILENCE_SECONDS_MAX)
    if reader.is_alive():
        raise StoppedError(f"{len(seen)} lines came, not {len(answered)}")
    late = sorted(max(0.0, seen[number] - time) * 1000 for number, time in enumerate(answered))
    return {
        "busy_messages_per_second": per_second,
        "lines": len(late),
        "p50_ms": late[len(late) // 2],
        "p99_ms": late[len(late) * 99 // 100],
        "max_ms": late[-1],
    }


def _name_in_another_shard(name: str) -> str:
    shards = ShardMap(SHARDS)
    return next(each for each in map("quiet-{}".format, range(100)) if shards.of_name(each) != shards.of_name(name))


def _publish(port: int, queue: str, seconds: float) -> list[float]:
    """When each message was answered; its number is its body. The last one ends the reader."""
    connection = http.client.HTTPConnection(HOST, port, timeout=SILENCE_SECONDS_MAX)
    answered: list[float] = []
    end = time.perf_counter() + seconds
    is_last = False
    while not is_last:
        is_last = time.perf_counter() > end
        body = json.dumps({"message": f"{len(answered)} {'last' if is_last else ''}"}).encode()
        connection.request("POST", f"/v1/queues/{queue}/messages", body)
        if connection.getresponse().read() and not connection.sock:
            raise StoppedError("the broker closed the connection of the publisher")
        answered.append(time.perf_counter())
        time.sleep(PAUSE_SECONDS)
    connection.close()
    return answered


def _lines(port: int, queue: str) -> Iterator[str]:
    """First an empty one, when the broker has begun to answer."""
    with socket.create_connection((HOST, port), SILENCE_SECONDS_MAX) as link:
        target = f"/v1/events?follow=true&from=now&queue={queue}&state=L"
        link.sendall(f"GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
        with link.makefile("r", newline="\n") as answer:
            while answer.readline().strip():
                pass
            yield ""
            yield from answer


def _read(lines: Iterator[str], seen: dict[int, float]) -> None:
    for line in lines:
        if line.startswith("{"):
            number, _, word = json.loads(line)["message"].partition(" ")
            seen[int(number)] = time.perf_counter()
            if word:
                return
