"""Redis Streams with `appendfsync always`: XADD; then XREADGROUP and XACK.

Three shapes: 256 connections with one command in flight each, 8 connections with 32 in flight each, and 8 with 100,
as many as our own requests of 100 messages have in flight.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from bench.cores import on_load_core
from bench.driver import Count, closed_loop, connect, until_finished
from bench.load import BODY, Tally
from bench.servers import accepts, free_port, running, scratch_directory
from bench.targets import IN_FLIGHT, Figures, Plan, Target, program

PIPELINED_CONNECTIONS = 8
PIPELINED_DEPTH_MOST = 100
# Entries needed for each second of reading: more than it has ever read.
READ_PER_SECOND_MAX = 400_000
FILL_SECONDS_MAX = 120.0
ENTRY_LINES = 8  # Lines of an entry with one field in the answer to XREADGROUP.
HEAD_LINES = 5


def command(*words: bytes) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


class Add(Tally):
    """Keeps a number of XADDs in flight on one connection."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.depth = depth
        self.request = command(b"XADD", b"bench", b"*", b"b", BODY)
        self.lines = 0

    def open(self) -> bytes:
        return self.request * self.depth

    def receive(self, data: bytes) -> bytes:
        if b"-ERR" in data:
            self.wrong(data)
        # An answer is two lines: the length of the id, and the id.
        self.lines += data.count(b"\n")
        answers, self.lines = divmod(self.lines, 2)
        self.finished += answers
        return self.request * answers


class ReadAndAcknowledge(Tally):
    """Reads a number of entries for a consumer group, acknowledges them, and repeats."""

    def __init__(self, name: str, depth: int) -> None:
        super().__init__()
        consumer, count = name.encode(), b"%d" % depth
        self.read = command(b"XREADGROUP", b"GROUP", b"g", consumer, b"COUNT", count, b"STREAMS", b"bench", b">")
        self.kept = b""
        self.unacknowledged = 0

    def open(self) -> bytes:
        return self.read

    def receive(self, data: bytes) -> bytes:
        if self.unacknowledged:
            return self._acknowledged(data)
        data = self.kept + data
        lines = data.split(b"\r\n")
        if len(lines) <= HEAD_LINES or len(lines) <= HEAD_LINES + ENTRY_LINES * int(lines[4][1:]):
            if data[:2] in (b"-E", b"*-"):
                self.wrong(data)  # An error, or nothing left to read.
                return self.read
            self.kept = data
            return b""
        self.kept = b""
        ids = lines[HEAD_LINES + 2 :: ENTRY_LINES]
        self.unacknowledged = len(ids)
        return command(b"XACK", b"bench", b"g", *ids)

    def _acknowledged(self, data: bytes) -> bytes:
        if data == b":%d\r\n" % self.unacknowledged:
            self.finished += self.unacknowledged
        else:
            self.wrong(data)
        self.unacknowledged = 0
        return self.read


def add_rate(port: int, connections: int, depth: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [Add(depth) for _ in range(connections)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def fill(port: int, messages: int) -> Count:
    conversations = [Add(IN_FLIGHT // PIPELINED_CONNECTIONS) for _ in range(PIPELINED_CONNECTIONS)]
    return until_finished(port, conversations, messages, seconds_max=FILL_SECONDS_MAX)


def read_rate(port: int, connections: int, depth: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [ReadAndAcknowledge(f"c{number}", depth) for number in range(connections)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def measure(plan: Plan, connections: int, depth: int) -> Figures:
    with started(plan) as port:
        publish = on_load_core(add_rate, port, connections, depth, plan.warm_seconds, plan.seconds)
        missing = int(READ_PER_SECOND_MAX * (plan.warm_seconds + plan.seconds)) - publish.with_warm_up
        if missing > 0:
            on_load_core(fill, port, missing)
        with connect(port, blocking=True) as link:
            link.sendall(command(b"XGROUP", b"CREATE", b"bench", b"g", b"0"))
            assert link.recv(100) == b"+OK\r\n"
        consume = on_load_core(read_rate, port, connections, depth, plan.warm_seconds, plan.seconds)
    return Figures(publish, consume)


@contextlib.contextmanager
def started(plan: Plan, fsync: str = "always") -> Iterator[int]:
    server, port = find(), free_port()
    assert server is not None
    with scratch_directory(plan.scratch) as directory:
        options = ["--bind", "127.0.0.1", "--port", str(port), "--dir", directory, "--save", ""]
        options += ["--appendonly", "yes", "--appendfsync", fsync, "--daemonize", "no"]
        with running([server, *options], directory, lambda: accepts(port)):
            yield port


def find() -> Path | None:
    return program("redis-server")


TARGETS = (
    Target(
        "redis",
        "Redis Streams, 256 connections",
        lambda plan: measure(plan, IN_FLIGHT, 1),
        find,
        "redis-server",
    ),
    Target(
        "redis-pipelined",
        "Redis Streams, pipelined 8 of 32",
        lambda plan: measure(plan, PIPELINED_CONNECTIONS, IN_FLIGHT // PIPELINED_CONNECTIONS),
        find,
        "redis-server",
    ),
    Target(
        "redis-pipelined-more",
        "Redis Streams, pipelined 8 of 100",
        lambda plan: measure(plan, PIPELINED_CONNECTIONS, PIPELINED_DEPTH_MOST),
        find,
        "redis-server",
        note="800 in flight",
    ),
)
