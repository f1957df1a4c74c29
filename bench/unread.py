"""What answers cost that nobody reads: `python -m bench unread`.

Connections ask for much and read nothing, in every shell and stream, with bodies of each size, and over links between
workers. The broker is on one core, everything else on the other. For each kind: by how much the broker's own memory
grows (`RssAnon`: files that it has mapped do not count; of several processes, the one that grows the most, because
each has the bound), how soon `/health` answers, and the share that honest publishers keep of their rate. What misses
a bar ends the run with an error, after all kinds are tried. `BENCH_UNREAD=name,…` tries only kinds whose names
contain one of these.
"""

import contextlib
import os
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.progress import Progress

from bench import nq, websocket
from bench.cores import LOAD_CORE, on_load_core
from bench.driver import HOST
from bench.load import publish_rate, request
from bench.penstock import Broker, ask
from bench.servers import scratch_directory
from penstock.cli.tls import write_pair
from penstock.limits import RANGE_BYTES_MAX

Found = dict[str, float]

CONNECTIONS = 300
BOUND_BYTES = 256 << 20
SETTLE_SECONDS = 3.0  # From the first request of the hostile clients to the measured time.
SECONDS = 4.0
PUBLISHERS = 16
PROBE_SECONDS = 0.01
LARGE_BYTES, MIDDLE_BYTES, SMALL_BYTES = 1 << 20, 16 << 10, 100
LARGE_GROWTH_MAX, SMALL_GROWTH_MAX = 1.25, 1.5  # Of the bound; for bodies up to `SMALL_BYTES`, the second.
HEALTH_MS_MAX = 100.0
RATE_SHARE_MIN = 0.7
STOCK = {"large": (LARGE_BYTES, 64), "middle": (MIDDLE_BYTES, 1000), "small": (SMALL_BYTES, 4000)}
SOURCE = "127.0.0.2"  # Where hostile clients come from.
UPGRADE = websocket.UPGRADE


class Kind(NamedTuple):
    """What each connection sends: its opening, and then this many requests at once, by their number."""

    ask: Callable[[int], bytes]
    requests: int
    opening: bytes = b""
    is_small: bool = False
    over: str = "http"  # "lines", "tls"
    workers: int = 1  # With several, most connections are those of a process that does not have the queue.


def _receive(queue: str, most: int) -> Callable[[int], bytes]:
    asked = request("GET", f"/messages/{queue}", headers={"X-MQS-MAX-MESSAGES": str(most)} if most > 1 else {})
    return lambda _: asked


def _pull(queue: str, most: int) -> Callable[[int], bytes]:
    """Each as another receiver, so that each gets everything."""

    def pull(number: int) -> bytes:
        body = b'{"receiver":"%d-%d","timeout":0,"queues":{"%b":{"max":%d}}}'
        return request("POST", "/pull", body % (os.getpid(), number, queue.encode(), most), nq.JSON)

    return pull


def _fetch(queue: str) -> Callable[[int], bytes]:
    frame = websocket.frame(b'{"type":"fetch","queue":"%b","work_timeout":0,"block_timeout":0}' % queue.encode())
    return lambda _: frame


def _line(queue: str) -> Callable[[int], bytes]:
    line = b'{"cmd":"FET","qname":"%b"}\n' % queue.encode()
    return lambda _: line


def _get(target: str, **headers: str) -> Callable[[int], bytes]:
    asked = request("GET", target, headers=headers)
    return lambda _: asked


KINDS = {
    "http 4 MiB": Kind(_receive("large", 4), 16),
    "http 1 MiB": Kind(_receive("large", 1), 16),
    "http 16 KiB": Kind(_receive("middle", 1), 1000),
    "http small": Kind(_receive("small", 1), 20_000, is_small=True),
    "http small, 1,000 at once": Kind(_receive("small", 1000), 200, is_small=True),
    "long polls 1 MiB": Kind(_get("/messages/late", **{"X-MQS-MAX-WAIT-TIME": "20"}), 16),
    "nq 4 MiB": Kind(_pull("kept-large", 4), 16),
    "nq small": Kind(_pull("kept-small", 1000), 100, is_small=True),
    "websocket 1 MiB": Kind(_fetch("large"), 1000, UPGRADE),
    "websocket 16 KiB": Kind(_fetch("middle"), 4000, UPGRADE),
    "websocket small": Kind(_fetch("small"), 30_000, UPGRADE, is_small=True),
    "lines 1 MiB": Kind(_line("large"), 1000, over="lines"),
    "lines 16 KiB": Kind(_line("middle"), 4000, over="lines"),
    "lines small": Kind(_line("small"), 30_000, is_small=True, over="lines"),
    "tls 4 MiB": Kind(_receive("large", 4), 16, over="tls"),
    "tls 16 KiB": Kind(_receive("middle", 1), 1000, over="tls"),
    "linked 4 MiB": Kind(_receive("large", 4), 16, workers=3),
    "linked 1 MiB": Kind(_receive("large", 1), 16, workers=3),
    "linked small, 1,000 at once": Kind(_receive("small", 1000), 200, is_small=True, workers=3),
    "linked long polls 1 MiB": Kind(_get("/messages/late", **{"X-MQS-MAX-WAIT-TIME": "20"}), 16, workers=3),
    "linked search": Kind(_get("/v1/search?queue=large&limit=100"), 16, workers=3),
    "events": Kind(_get("/v1/events?follow=true&bodies=true"), 1),
    "sent events": Kind(_get("/v1/events?follow=true&bodies=true", Accept="text/event-stream"), 1),
    "arrow": Kind(_get("/v1/events?follow=true&bodies=true", Accept="application/vnd.apache.arrow.stream"), 1),
    "the log": Kind(_get(f"/v1/log/batches?from=0&max_bytes={RANGE_BYTES_MAX}"), 1),
    "backup": Kind(_get("/v1/backup/log?from=0&to=100000000"), 1),
    "search": Kind(_get("/v1/search?queue=large&limit=100"), 16),
}


# ── The hostile side ──────────────────────────────────────────────────────────────────────────────────────────


def hostile(name: str, port: int, connections: int, ca: str) -> None:
    """Ask as much as the broker takes, and read nothing."""
    os.sched_setaffinity(0, {LOAD_CORE})
    os.nice(10)  # The honest clients share the core with it.
    kind = KINDS[name]
    links = [_connected(port, ca) for _ in range(connections)]
    waiting = [(link, _sent(kind, number)) for number, link in enumerate(links)]
    print("begun", flush=True)
    while True:
        waiting = [(link, rest) for link, data in waiting if (rest := _send_some(link, data))]
        time.sleep(0.02)


def _connected(port: int, ca: str) -> socket.socket:
    link = socket.create_connection((HOST, port), 20, source_address=(SOURCE, 0))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if ca:
        link = ssl.create_default_context(cafile=ca).wrap_socket(link, server_hostname=HOST)
    link.setblocking(False)
    return link


def _sent(kind: Kind, number: int) -> memoryview:
    first = number * kind.requests
    return memoryview(kind.opening + b"".join([kind.ask(first + each) for each in range(kind.requests)]))


def _send_some(link: socket.socket, data: memoryview) -> memoryview:
    try:
        return data[link.send(data[:1_000_000]) :]
    except (BlockingIOError, ssl.SSLWantWriteError):
        return data
    except OSError:
        return memoryview(b"")  # The broker has closed it.


@contextlib.contextmanager
def _under(name: str, port: int, connections: int, ca: str) -> Iterator[None]:
    command = [sys.executable, "-m", "bench.unread", name, str(port), str(connections), ca]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n", f"hostile clients could not begin: {name}"
        yield
    finally:
        process.kill()
        process.wait()


# ── Measuring ─────────────────────────────────────────────────────────────────────────────────────────────────


class Watch(threading.Thread):
    """Looks at the memory of the broker and asks for `/health`, again and again."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._is_over = False
        self._before = {pid: own_bytes(pid) for pid in processes(broker)}
        self.grown_bytes = 0
        self.health_seconds: list[float] = []

    def run(self) -> None:
        while not self._is_over:
            grown = [own_bytes(pid) - before for pid, before in self._before.items()]
            self.grown_bytes = max(self.grown_bytes, *grown)
            began = time.perf_counter()
            with contextlib.suppress(OSError):
                ask(self._broker.port, "GET", "/health", tls=self._broker.tls)
            self.health_seconds.append(time.perf_counter() - began)
            time.sleep(PROBE_SECONDS)

    def end(self) -> None:
        self._is_over = True
        self.join()


def processes(broker: Broker) -> list[int]:
    """The broker, and its workers if it has some."""
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text()
    return [broker.pid, *map(int, children.split())]


def own_bytes(pid: int) -> int:
    """Memory of a process that is no file."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(row.split()[1]) << 10 for row in status.splitlines() if row.startswith("RssAnon"))


def measure(scratch: Path, name: str, connections: int) -> Found:
    """On a broker of its own: what one kind leaves behind is not counted for the next."""
    kind = KINDS[name]
    with scratch_directory(scratch) as folder, contextlib.ExitStack() as stack:
        pair = folder / "penstock.pem", folder / "penstock.key"
        write_pair(*pair, [HOST], 1)
        options = ["--set", f"unread_bytes_max={BOUND_BYTES}", "--set", "events.readers_max=1000"]
        options += ["--workers", str(kind.workers)] if kind.workers > 1 else []
        broker = Broker(folder, tuple(options))
        broker.start()
        stack.callback(broker.end)
        _prepare(broker)
        ca = ""
        if kind.over == "tls":
            broker.end()
            broker.options = (*options, "--tls-certificate", str(pair[0]), "--tls-key", str(pair[1]))
            ca = str(pair[0])
            broker.tls = ssl.create_default_context(cafile=ca)
            broker.start()
        port = broker.lines_port if kind.over == "lines" else broker.port
        alone = 0.0 if ca else on_load_core(publish_rate, port_of(broker), PUBLISHERS, 0.5, SECONDS / 2).per_second
        watch = Watch(broker)
        watch.start()
        with _under(name, port, connections, ca):
            if "long polls" in name:
                _publish(broker, "late", LARGE_BYTES, 4 * connections, at_once=1)
            time.sleep(SETTLE_SECONDS)
            beside = 0.0 if ca else on_load_core(publish_rate, port_of(broker), PUBLISHERS, 0.5, SECONDS).per_second
            watch.end()
    seconds = sorted(watch.health_seconds)
    return {
        "growth": watch.grown_bytes / BOUND_BYTES,
        "grown_bytes": watch.grown_bytes,
        "health_p99_ms": seconds[int(len(seconds) * 0.99)] * 1e3,
        "health_worst_ms": seconds[-1] * 1e3,
        "health_median_ms": statistics.median(seconds) * 1e3,
        "publishers": beside / alone if alone else 1.0,
    }


def port_of(broker: Broker) -> int:
    return broker.port


def _prepare(broker: Broker) -> None:
    broker.make_queue("bench")
    broker.make_queue("late", visibility_timeout=0)
    for name, (size, count) in STOCK.items():
        broker.make_queue(name, visibility_timeout=0)
        assert ask(broker.port, "PUT", f"/v1/queues/kept-{name}", b'{"keep":"all"}')[0] in {200, 201}
        for queue in (name, f"kept-{name}"):
            _publish(broker, queue, size, count)


def _publish(broker: Broker, queue: str, size: int, count: int, at_once: int = 1000) -> None:
    part = b"--b\r\nContent-Type: text/plain\r\n\r\n" + b"x" * size + b"\r\n"
    at_once = max(1, min(at_once, (8 << 20) // size))
    while count:
        some = min(count, at_once)
        count -= some
        body = part * some + b"--b--\r\n"
        status, answer = ask(broker.port, "POST", f"/messages/{queue}", body, kind="multipart/mixed; boundary=b")
        assert status in {201, 202}, answer


def misses(name: str, found: Found) -> list[str]:
    most = SMALL_GROWTH_MAX if KINDS[name].is_small else LARGE_GROWTH_MAX
    missed = ["memory"] if found["growth"] > most else []
    missed += ["health"] if found["health_p99_ms"] > HEALTH_MS_MAX else []
    return missed + (["publishers"] if found["publishers"] < RATE_SHARE_MIN else [])


def unread(progress: Progress, scratch: Path, connections: int) -> Found:
    wanted = os.environ.get("BENCH_UNREAD", "").split(",")
    names = [name for name in KINDS if any(part in name for part in wanted)]
    task = progress.add_task("unread", total=len(names))
    found: Found = {"connections": connections}
    missed: list[str] = []
    for name in names:
        progress.update(task, description=name)
        one = measure(scratch, name, connections)
        bad = misses(name, one)
        missed += [f"{name}: {', '.join(bad)}"] if bad else []
        found |= {f"{name} {figure}": value for figure, value in one.items()}
        progress.print(_shown(name, one, bad))
        progress.advance(task)
    if missed:
        raise SystemExit("missed: " + "; ".join(missed))
    return found


def _shown(name: str, one: Found, bad: list[str]) -> str:
    facts = f"{one['growth']:.2f} of the bound, /health p99 {one['health_p99_ms']:.0f} ms"
    facts += f" (worst {one['health_worst_ms']:.0f}), publishers {one['publishers']:.2f}"
    return f"{name:28} {facts} {'MISSED: ' + ', '.join(bad) if bad else ''}"


if __name__ == "__main__":
    hostile(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
