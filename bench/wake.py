"""How soon a waiting client is woken: the time from the publisher's answer to the waiter's: `python -m bench wake`.

There is one publisher and one waiting client, so the times are those of an otherwise idle broker.
"""

import json
import select
import socket
import time
from pathlib import Path
from typing import Protocol

from rich.progress import Progress

from bench import lines, websocket
from bench.cores import on_load_core
from bench.driver import READ_BYTES, SILENCE_SECONDS_MAX, StoppedError, connect, latency_of
from bench.penstock import broker

Found = dict[str, float]

ROUNDS = 3_000
WARM_ROUNDS = 200
PAUSE_SECONDS = 0.002  # Between two rounds, so that the broker is idle again.
BLOCK_SECONDS = 30
LABEL = 7


def wake(progress: Progress, scratch: Path, rounds: int) -> Found:
    found: Found = {"rounds": rounds}
    with broker(scratch) as penstock:
        for name, measured, port in (
            ("lines", wake_lines, penstock.lines_port),
            ("websocket", wake_websocket, penstock.port),
        ):
            task = progress.add_task(f"wake-ups, {name}", total=None)
            penstock.make_queue(name)
            times = on_load_core(measured, port, name, rounds)
            found |= {f"{name}_{key}": value for key, value in times.items()}
            progress.remove_task(task)
    return found


class Talker:
    """One connection that is read answer by answer."""

    def __init__(self, link: socket.socket, end: bytes) -> None:
        link.settimeout(SILENCE_SECONDS_MAX)
        self.link = link
        self.end = end  # Bytes that end an answer and occur nowhere else in it.
        self.kept = b""

    def send(self, data: bytes) -> None:
        self.link.sendall(data)

    def read(self) -> bytes:
        """Waits for the next answer."""
        while (end := self.kept.find(self.end)) < 0:
            data = self.link.recv(READ_BYTES)
            if not data:
                raise StoppedError("the server closed a connection")
            self.kept += data
        end += len(self.end)
        answer, self.kept = self.kept[:end], self.kept[end:]
        return answer

    def expect(self, part: bytes) -> bytes:
        answer = self.read()
        if part not in answer:
            raise StoppedError(f"{part!r} expected, not {answer!r}")
        return answer

    def ask(self, data: bytes, part: bytes) -> bytes:
        self.send(data)
        return self.expect(part)


class Pair(Protocol):
    """A publisher and a sleeper of one dialect."""

    publisher: Talker
    sleeper: Talker

    def sleep(self) -> None: ...

    def post(self) -> None: ...

    def settle(self) -> None:
        """Read both answers, and finish the message."""


class LinesPair:
    """The sleeper is a worker that has sent ISLP."""

    def __init__(self, port: int, queue: str) -> None:
        self.publisher, self.sleeper = [Talker(connect(port, blocking=True), b"\n") for _ in range(2)]
        self.queue = queue
        self.sleeper.ask(lines.line("SUB", queue), b'"oksub"')

    def sleep(self) -> None:
        self.sleeper.ask(lines.line("ISLP", self.queue), b'"okslp"')

    def post(self) -> None:
        self.publisher.send(lines.publish(self.queue))

    def settle(self) -> None:
        self.publisher.expect(b'"ok"')
        self.sleeper.expect(b'"awk"')
        message = json.loads(self.sleeper.ask(lines.line("FET", self.queue), b'"msg"'))
        acknowledge = lines.line("ACK", self.queue, b',"uid":"%b"' % message["uid"].encode())
        self.sleeper.ask(acknowledge, b'"okack"')


class WebSocketPair:
    """The sleeper is a fetch that waits."""

    def __init__(self, port: int, queue: str) -> None:
        self.publisher, self.sleeper = [Talker(websocket.greeted(port), b"}") for _ in range(2)]
        self.posted = websocket.post(LABEL, queue)
        self.fetch = websocket.fetch(LABEL, queue, block_seconds=BLOCK_SECONDS)
        self.finish = websocket.finish(queue)

    def sleep(self) -> None:
        self.sleeper.send(self.fetch)

    def post(self) -> None:
        self.publisher.send(self.posted)

    def settle(self) -> None:
        self.publisher.expect(b'"sync"')
        found = websocket.MESSAGE.search(self.sleeper.expect(b'"message"'))
        assert found, "the message says its sequence number"
        label, shard, sequence = found.groups()
        self.sleeper.ask(self.finish % (sequence, shard, label), b'"notice"')


def wake_lines(port: int, queue: str, rounds: int) -> Found:
    return timed(LinesPair(port, queue), rounds)


def wake_websocket(port: int, queue: str, rounds: int) -> Found:
    return timed(WebSocketPair(port, queue), rounds)


def timed(pair: Pair, rounds: int) -> Found:
    """If the sleeper is answered before the publisher, the time counts as 0."""
    after_answer, after_post = [], []
    for number in range(WARM_ROUNDS + rounds):
        pair.sleep()
        time.sleep(PAUSE_SECONDS)
        posted = time.perf_counter()
        pair.post()
        answered, awake = arrivals(pair.publisher.link, pair.sleeper.link)
        pair.settle()
        if number >= WARM_ROUNDS:
            after_answer.append(max(0.0, awake - answered))
            after_post.append(awake - posted)
    found: Found = {}
    for name, waits in (("after_answer", after_answer), ("after_post", after_post)):
        latency = latency_of(waits, sum(waits) or 1.0, 0, "")
        found |= {
            f"{name}_p50_ms": latency.p50_ms,
            f"{name}_p99_ms": latency.p99_ms,
            f"{name}_max_ms": latency.max_ms,
        }
    return found


def arrivals(*links: socket.socket) -> list[float]:
    """The times at which each of them first had something to read."""
    times: dict[socket.socket, float] = {}
    while waiting := [link for link in links if link not in times]:
        ready, _, _ = select.select(waiting, [], [], SILENCE_SECONDS_MAX)
        if not ready:
            raise StoppedError(f"nothing came for {SILENCE_SECONDS_MAX:.0f} s")
        times |= dict.fromkeys(ready, time.perf_counter())
    return [times[link] for link in links]
