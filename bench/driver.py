"""Drives many connections from one thread, and counts what comes back.

A `Conversation` is one connection's side of a protocol: bytes in, bytes out. The driver owns the
sockets and the clock. Its loops are written for speed (bound methods in a table, no objects created),
because a load that is slower than the server would measure itself.
"""

import contextlib
import gc
import math
import select
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

HOST = "127.0.0.1"
READ_BYTES = 1 << 16
POLL_SECONDS = 0.05
CONNECT_SECONDS_MAX = 5.0
# The run fails if the server answers nothing for this long: it has lost the requests.
SILENCE_SECONDS_MAX = 20.0
# Requests that are still unanswered this long after the end of a paced run count as errors.
DRAIN_SECONDS_MAX = 10.0


class Conversation(Protocol):
    """One connection: what to send first, and what to send after each read."""

    finished: int  # Operations finished since the connection was opened.
    errors: int  # Answers other than the expected one.
    complaint: str  # The first such answer, for the report.

    def open(self) -> bytes: ...

    def receive(self, data: bytes) -> bytes:
        """Take what was read, and return what to send now (nothing while an answer is incomplete)."""


@dataclass(frozen=True)
class Count:
    """How many operations were finished inside the timed section."""

    operations: int
    seconds: float
    with_warm_up: int  # All operations, including the warm-up.
    load_cpu_share: float  # Near 1: the load, not the server, may have been the limit.
    errors: int
    complaint: str

    @property
    def per_second(self) -> float:
        return self.operations / self.seconds


class StoppedError(Exception):
    """The server closed a connection, or fell silent."""


def connect(port: int, *, blocking: bool = False, tls: ssl.SSLContext | None = None) -> socket.socket:
    """With TLS it blocks: the first read may be of records that hold no answer."""
    link = socket.create_connection((HOST, port), timeout=CONNECT_SECONDS_MAX)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if tls:
        return tls.wrap_socket(link, server_hostname=HOST)
    if not blocking:
        link.setblocking(False)
    return link


@contextlib.contextmanager
def opened(port: int, count: int, tls: ssl.SSLContext | None = None) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(port, tls=tls)) for _ in range(count)]


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Disable garbage collection: the timed loops create no cycles, so it would only add pauses."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def send_whole(link: socket.socket, data: bytes) -> None:
    """Send all of it, and wait for space if the socket's buffer is full."""
    view = memoryview(data)
    while view:
        try:
            view = view[link.send(view) :]
        except BlockingIOError:
            select.select([], [link], [], SILENCE_SECONDS_MAX)


class Wheel:
    """The connections of one closed-loop run, each with one conversation."""

    def __init__(self, links: Sequence[socket.socket], conversations: Sequence[Conversation]) -> None:
        self.links = links
        self.conversations = conversations
        self.epoll = select.epoll()
        self.table: dict[int, tuple[Callable[[int], bytes], Callable[[bytes], bytes], socket.socket]] = {}
        for link, conversation in zip(links, conversations, strict=True):
            self.table[link.fileno()] = (link.recv, conversation.receive, link)
            self.epoll.register(link.fileno(), select.EPOLLIN)

    def open(self) -> None:
        for link, conversation in zip(self.links, self.conversations, strict=True):
            send_whole(link, conversation.open())

    def finished(self) -> int:
        return sum(conversation.finished for conversation in self.conversations)

    def turn_until(self, deadline: float) -> None:
        """Send the next request after every answer, until the deadline has passed."""
        table, poll, clock = self.table, self.epoll.poll, time.perf_counter
        now = heard = clock()
        while now < deadline:
            events = poll(POLL_SECONDS)
            for descriptor, _ in events:
                recv, receive, link = table[descriptor]
                data = recv(READ_BYTES)
                if not data:
                    raise StoppedError("the server closed a connection")
                reply = receive(data)
                if reply and link.send(reply) != len(reply):
                    raise StoppedError("a request did not fit into the socket's buffer")
            now = clock()
            if events:
                heard = now
            elif now - heard > SILENCE_SECONDS_MAX:
                raise StoppedError(f"no answer for {SILENCE_SECONDS_MAX:.0f} s")

    def turn_until_finished(self, operations: int, deadline: float) -> None:
        """Continue until this many operations are finished in all."""
        while (finished := self.finished()) < operations:
            now = time.perf_counter()
            if now > deadline:
                raise StoppedError(f"{finished} of {operations} operations were finished in time")
            self.turn_until(now + POLL_SECONDS)

    def count(self, operations: int, seconds: float, cpu_seconds: float) -> Count:
        errors = sum(conversation.errors for conversation in self.conversations)
        complaints = [conversation.complaint for conversation in self.conversations if conversation.complaint]
        complaint = complaints[0] if complaints else ""
        return Count(operations, seconds, self.finished(), cpu_seconds / seconds, errors, complaint)


def closed_loop(
    port: int,
    conversations: Sequence[Conversation],
    *,
    warm_seconds: float,
    seconds: float,
    tls: ssl.SSLContext | None = None,
) -> Count:
    """Keep every conversation going; count the operations finished after the warm-up."""
    with opened(port, len(conversations), tls) as links, quiet_collector():
        wheel = Wheel(links, conversations)
        wheel.open()
        wheel.turn_until(time.perf_counter() + warm_seconds)
        before, started, cpu = wheel.finished(), time.perf_counter(), time.process_time()
        wheel.turn_until(started + seconds)
        ended = time.perf_counter()
        return wheel.count(wheel.finished() - before, ended - started, time.process_time() - cpu)


def until_finished(
    port: int,
    conversations: Sequence[Conversation],
    operations: int,
    *,
    seconds_max: float,
    warm_operations: int = 0,
) -> Count:
    """Keep every conversation going until this many operations are finished in all.

    Requests in flight at that moment are abandoned, unless the conversations stopped by themselves. The rate does not
    include the first operations, which warm the server up.
    """
    with opened(port, len(conversations)) as links, quiet_collector():
        wheel = Wheel(links, conversations)
        deadline = time.perf_counter() + seconds_max
        wheel.open()
        wheel.turn_until_finished(warm_operations, deadline)
        before, started, cpu = wheel.finished(), time.perf_counter(), time.process_time()
        wheel.turn_until_finished(operations, deadline)
        ended = time.perf_counter()
        return wheel.count(wheel.finished() - before, ended - started, time.process_time() - cpu)


@dataclass(frozen=True)
class Latency:
    """How long answers took, in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    per_second: float
    errors: int
    complaint: str


def latency_of(waits_seconds: list[float], span_seconds: float, errors: int, complaint: str) -> Latency:
    waits_seconds.sort()

    def rank(share: float) -> float:
        return waits_seconds[max(0, math.ceil(share * len(waits_seconds)) - 1)] * 1e3

    if not waits_seconds:
        raise StoppedError(f"no answer in the timed section; {complaint}")
    per_second = len(waits_seconds) / span_seconds
    return Latency(rank(0.5), rank(0.99), rank(1.0), per_second, errors, complaint)


def paced(
    port: int,
    conversations: Sequence[Conversation],
    *,
    rate: float,
    warm_seconds: float,
    seconds: float,
) -> Latency:
    """Send at a fixed rate, independent of the answers; time each request from the moment it was due.

    If every connection is busy when a request is due, it waits, and that time counts: a stall of the server
    is charged to every request that it delays. Each conversation must send one request per answer.
    """
    with opened(port, len(conversations)) as links, quiet_collector():
        return _paced(links, conversations, rate, warm_seconds, seconds)


def _paced(
    links: Sequence[socket.socket],
    conversations: Sequence[Conversation],
    rate: float,
    warm_seconds: float,
    seconds: float,
) -> Latency:
    epoll, clock = select.epoll(), time.perf_counter
    # For each connection: how to read, how to handle an answer, how to send.
    table = {}
    for link, conversation in zip(links, conversations, strict=True):
        epoll.register(link.fileno(), select.EPOLLIN)
        table[link.fileno()] = (link.recv, conversation.receive, link.send)
    idle = [(link.fileno(), conversation.open()) for link, conversation in zip(links, conversations, strict=True)]
    due_of: dict[int, float] = {}
    waits: list[float] = []
    interval = 1.0 / rate
    started = clock()
    counted_from, last, due = started + warm_seconds, started + warm_seconds + seconds, started
    now = started
    while due_of or due < last:
        if now > last + DRAIN_SECONDS_MAX:
            break
        while idle and due <= now and due < last:
            descriptor, request = idle.pop()
            due_of[descriptor] = due
            table[descriptor][2](request)
            due += interval
        # No sleeping between sends: the poll's millisecond is longer than the time between requests.
        for descriptor, _ in epoll.poll(0):
            recv, receive, _ = table[descriptor]
            data = recv(READ_BYTES)
            if not data:
                raise StoppedError("the server closed a connection")
            request = receive(data)
            if request:
                was_due = due_of.pop(descriptor)
                if was_due >= counted_from:
                    waits.append(clock() - was_due)
                idle.append((descriptor, request))
        now = clock()
    # A request that was never answered, or never sent, is an error.
    unsent = max(0, int((last - due) / interval))
    errors = len(due_of) + unsent + sum(conversation.errors for conversation in conversations)
    complaints = [conversation.complaint for conversation in conversations if conversation.complaint]
    return latency_of(waits, seconds, errors, (complaints or ["unanswered" if errors else ""])[0])


def one_at_a_time(port: int, conversation: Conversation, *, warm_seconds: float, seconds: float) -> Latency:
    """One connection with one request in flight: the latency of a single client."""
    clock, waits = time.perf_counter, []
    with connect(port, blocking=True) as link, quiet_collector():
        link.settimeout(SILENCE_SECONDS_MAX)
        request = conversation.open()
        counted_from = clock() + warm_seconds
        last = counted_from + seconds
        sent = clock()
        while sent < last:
            link.sendall(request)
            request = b""
            while not request:
                data = link.recv(READ_BYTES)
                if not data:
                    raise StoppedError("the server closed the connection")
                request = conversation.receive(data)
            answered = clock()
            if sent >= counted_from:
                waits.append(answered - sent)
            sent = answered
    return latency_of(waits, sum(waits), conversation.errors, conversation.complaint)
