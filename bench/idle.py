"""What waiting clients cost: idle connections, and long polls that are all woken: `python -m bench idle`.

A woken client reads its answer only at the end, so that the work of the load does not delay the probes.
"""

import contextlib
import resource
import select
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import Progress

from bench import machine, websocket
from bench.cores import on_load_core
from bench.driver import (
    READ_BYTES,
    SILENCE_SECONDS_MAX,
    Conversation,
    StoppedError,
    opened,
    quiet_collector,
    send_whole,
)
from bench.load import PARTS, Framing, Publish, Tally, multipart, post, request
from bench.penstock import Broker, broker

Found = dict[str, float]

CONNECTIONS = 10_000
WARM_CONNECTIONS = 200
SPARE_CONNECTIONS = 300  # Further connections that the broker accepts.
OTHER_CONNECTIONS = 100  # In lines, and for pushes.
SPARE_DESCRIPTORS = 1_000
SETTLE_SECONDS = 1.0
IDLE_SECONDS = 10.0
IDLE_WINDOWS = 6
# Opening all of them must take less time; otherwise the first ones end before the last one is open.
WAIT_SECONDS = 20
POSTERS = 16
BATCH_POSTERS = 4
PROBE_SECONDS = 0.005
POLL_SECONDS = 0.001
POLLED, OTHER = "polled", "other"


def idle(progress: Progress, scratch: Path, connections: int) -> Found:
    """Measure very many idle clients, and very many that are all woken."""
    accepted = connections + SPARE_CONNECTIONS + 2 * OTHER_CONNECTIONS
    allow_descriptors(accepted * 8 // 7 + SPARE_DESCRIPTORS)  # A broker reserves up to an eighth of them.
    found: Found = {"connections": connections}
    with _roomy_broker(scratch, connections) as penstock:
        task = progress.add_task("idle WebSockets", total=None)
        found |= on_load_core(hold_idle, penstock.port, penstock.pid, connections)
        progress.remove_task(task)
    # One message a request, and as many as a request may have, which is the harder test.
    for name, posters, messages in (("singly", POSTERS, 1), ("in_batches", BATCH_POSTERS, PARTS)):
        with _roomy_broker(scratch, connections) as penstock:
            task = progress.add_task(f"polls woken {name.replace('_', ' ')}", total=None)
            penstock.make_queue(POLLED)
            penstock.make_queue(OTHER)
            woken = on_load_core(wake_polls, penstock.port, penstock.pid, connections, posters, messages)
            found |= {f"woken_{name}_{key}": value for key, value in woken.items()}
            progress.remove_task(task)
    return found


@contextlib.contextmanager
def _roomy_broker(scratch: Path, connections: int) -> Iterator[Broker]:
    limits = {"http": connections + SPARE_CONNECTIONS, "lines": OTHER_CONNECTIONS, "push": OTHER_CONNECTIONS}
    options = [word for name, most in limits.items() for word in ("--set", f"{name}.connections_max={most}")]
    with broker(scratch, *options) as penstock:
        yield penstock


def allow_descriptors(wanted: int) -> None:
    """Allow this many open files for this process and those it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(f"{wanted} open files are needed, {hard} allowed: raise the limit (ulimit -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def hold_idle(port: int, pid: int, connections: int) -> Found:
    """Open the connections, answer pings, and measure the broker's memory and processor time."""
    with contextlib.ExitStack() as warm:
        for _ in range(WARM_CONNECTIONS):
            warm.enter_context(websocket.greeted(port))
    time.sleep(SETTLE_SECONDS)
    before, started = machine.resident_bytes(pid), time.perf_counter()
    with contextlib.ExitStack() as stack:
        links = [stack.enter_context(websocket.greeted(port)) for _ in range(connections)]
        opened_in = time.perf_counter() - started
        time.sleep(SETTLE_SECONDS)
        after = machine.resident_bytes(pid)
        shares = idle_shares(pid, links)
    return {
        "websockets_opened_per_second": connections / opened_in,
        "websocket_kilobytes_each": (after - before) / connections / 1000,
        "websockets_idle_cpu_share": statistics.mean(shares),
        "websockets_idle_cpu_share_most": max(shares),
    }


def idle_shares(pid: int, links: Sequence[socket.socket]) -> list[float]:
    """The broker's share of its core in periods of ten seconds, long enough to include pings."""
    by_descriptor = {link.fileno(): link for link in links}
    shares = []
    with select.epoll() as epoll:
        for descriptor in by_descriptor:
            epoll.register(descriptor, select.EPOLLIN)
        for _ in range(IDLE_WINDOWS):
            cpu, started = machine.cpu_seconds(pid), time.perf_counter()
            while (left := started + IDLE_SECONDS - time.perf_counter()) > 0:
                for descriptor, _ in epoll.poll(left):
                    answer_ping(by_descriptor[descriptor])
            shares.append((machine.cpu_seconds(pid) - cpu) / IDLE_SECONDS)
    return shares


def answer_ping(link: socket.socket) -> None:
    data = link.recv(READ_BYTES)
    if data != websocket.EMPTY_PING:
        raise StoppedError(
            f"an idle connection got {data[:200]!r}" if data else "the server closed an idle connection"
        )
    link.send(websocket.PONG)


def wake_polls(port: int, pid: int, connections: int, posters: int, messages: int) -> Found:
    """Wake every poll with a message, and measure how long other clients wait meanwhile."""
    before = machine.resident_bytes(pid)
    poll = request("GET", f"/messages/{POLLED}", headers={"X-MQS-MAX-WAIT-TIME": str(WAIT_SECONDS)})
    with opened(port, connections) as sleepers:
        started = time.perf_counter()
        for link in sleepers:
            link.send(poll)
        time.sleep(SETTLE_SECONDS)
        asked_in = time.perf_counter() - started
        if asked_in > WAIT_SECONDS / 2:
            raise StoppedError(f"it took {asked_in:.0f} s to ask for everything: the first polls are about to end")
        asleep = machine.resident_bytes(pid)
        wake = multipart(POLLED, messages) if messages > 1 else post(POLLED)
        posts = [Publish(wake, messages, quota) for quota in _shares(connections, posters, messages)]
        calm = probe(port, [], 0)
        waits = probe(port, posts, connections)
        _expect_messages(sleepers)
    found = {"kilobytes_each": (asleep - before) / connections / 1000}
    for name, each in waits.items():
        found |= {f"{name}_longest_ms": max(each) * 1e3, f"{name}_longest_before_ms": max(calm[name]) * 1e3}
    return found


def _shares(total: int, parts: int, step: int) -> list[int]:
    """Split a total into parts that are as equal as possible, each a multiple of the step."""
    steps = total // step
    if steps * step != total:
        raise StoppedError(f"{total} is not a multiple of {step}")
    shares = [steps // parts + (number < steps % parts) for number in range(parts)]
    return [share * step for share in shares if share]


class Health(Tally):
    """Requests `/health` again and again."""

    def __init__(self) -> None:
        super().__init__()
        self.request = request("GET", "/health")
        self.whole = Framing().whole

    def open(self) -> bytes:
        return self.request

    def receive(self, data: bytes) -> bytes:
        answer = self.whole(data)
        if not answer:
            return b""
        if answer[9:12] == b"200":
            self.finished += 1
        else:
            self.wrong(answer)
        return self.request


class Poster:
    """Continues a conversation."""

    def __init__(self, link: socket.socket, conversation: Conversation) -> None:
        self.link = link
        self.conversation = conversation
        send_whole(link, conversation.open())

    def read(self) -> None:
        send_whole(self.link, self.conversation.receive(self.link.recv(READ_BYTES)))


class Probe:
    """A client with a steady rate: each request is timed from the moment it was due."""

    def __init__(self, link: socket.socket, conversation: Conversation) -> None:
        self.link = link
        self.conversation = conversation
        self.request = conversation.open()
        self.due = time.perf_counter()
        self.asked = False
        self.waits: list[float] = []

    def ask(self, now: float) -> None:
        if not self.asked and now >= self.due:
            self.link.send(self.request)
            self.asked = True

    def read(self) -> None:
        if self.conversation.receive(self.link.recv(READ_BYTES)):
            now = time.perf_counter()
            self.waits.append(now - self.due)
            self.asked = False
            self.due = max(self.due + PROBE_SECONDS, now)

    def end(self) -> None:
        """A probe that is still waiting has waited at least this long."""
        if self.asked:
            self.waits.append(time.perf_counter() - self.due)


def probe(port: int, posts: Sequence[Conversation], messages: int) -> dict[str, list[float]]:
    """Post this many messages, continue until the broker is idle again, and return how long the probes waited."""
    asking: dict[str, Conversation] = {"health": Health(), "publish": Publish(post(OTHER))}
    with opened(port, len(posts) + len(asking)) as links, quiet_collector(), select.epoll() as epoll:
        probes = {name: Probe(link, each) for link, (name, each) in zip(links, asking.items(), strict=False)}
        started = posted = now = time.perf_counter()
        posters = [Poster(link, each) for link, each in zip(links[len(asking) :], posts, strict=True)]
        readers = {each.link.fileno(): each.read for each in probes.values()}
        readers |= {each.link.fileno(): each.read for each in posters}
        for descriptor in readers:
            epoll.register(descriptor, select.EPOLLIN)
        # The last polls are answered after the last post.
        while now < posted + SETTLE_SECONDS:
            for each in probes.values():
                each.ask(now)
            for descriptor, _ in epoll.poll(POLL_SECONDS):
                readers[descriptor]()
            now = time.perf_counter()
            if sum(conversation.finished for conversation in posts) < messages:
                posted = now
            if now > started + SILENCE_SECONDS_MAX:
                raise StoppedError("the posts were not answered in time")
        for each in probes.values():
            each.end()
    _right([*posts, *asking.values()])
    return {name: each.waits for name, each in probes.items()}


def _right(conversations: Sequence[Conversation]) -> None:
    for conversation in conversations:
        if conversation.errors:
            raise StoppedError(f"{conversation.errors} wrong answers, such as {conversation.complaint!r}")


def _expect_messages(sleepers: Sequence[socket.socket]) -> None:
    """Check that every poll is answered with a message."""
    ids = set()
    for link in sleepers:
        link.settimeout(SILENCE_SECONDS_MAX)
        framing, answer = Framing(), b""
        while not answer:
            data = link.recv(READ_BYTES)
            if not data:
                raise StoppedError("the server closed a poll")
            answer = framing.whole(data)
        if answer[9:12] != b"200":
            raise StoppedError(f"a poll was answered with {answer[:200]!r}")
        ids.add(framing.value(answer, b"x-mqs-message-id"))
    if len(ids) != len(sleepers):
        raise StoppedError(f"{len(sleepers)} polls got {len(ids)} different messages")
