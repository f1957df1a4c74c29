"""What hostile clients cost an honest one: `python -m bench.hostile` prints a table and writes `hostile.json`.

An honest client posts durable messages with one request in flight: alone, and next to each kind of attack
(`bench/attacks.py`), which comes from another process and another address. Each kind is tried with one connection,
with one connection while quotas are set, and with a thousand connections. `BARS` has what must hold; the memory of
the broker must stay within its limits.

The attack runs on the core of the honest client, so the client loses time to it even if the broker does not. So the
table also has the share of a core that the broker spends on the attack alone, after the honest client has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from bench import attacks, machine, report
from bench.attacks import ATTACKS, BODY, Ports, request
from bench.cores import LOAD_CORE, on_load_core
from bench.driver import Latency, StoppedError, connect, one_at_a_time
from bench.load import Publish
from bench.penstock import Broker
from bench.servers import scratch_directory

TOKEN = "honest-token"
QUEUES = 10_000
STOCK = 100_000  # Messages for the searches to read.
PARTS = 1000
CROWD = 1000
WARM_SECONDS = 0.5
ALONE_SECONDS = 1.0  # How long the broker's time for an attack is measured.
ATTACKS_PER_BASELINE = 3
SETTINGS = b'{"retention_timeout":86400,"visibility_timeout":30,"message_deduplication":false}'
LIMIT_BYTES = 64 << 20  # Of each of the limits below.
LIMITS = ("http.buffered_bytes_max", "lines.buffered_bytes_max", "unread_bytes_max")
QUOTAS = {  # For every address; the honest client keeps within them.
    "connections": 2000,
    "connections_per_second": 50,
    "bytes_per_second": 5_000_000,
    "requests_per_second": 4500,
    "published_per_second": 4500,
    "received_per_second": 1000,
    "waiting": 100,
    "unread_bytes": 8 << 20,
    "work_seconds_per_second": 0.05,
    "search_seconds_per_minute": 0.2,
    "replay_seconds_per_minute": 0.2,
}


class Bar(NamedTuple):
    """What the honest client must keep next to so many hostile connections."""

    connections: int
    quotas: bool
    share_min: float
    p99_ms_max: float


BARS = {
    "one": Bar(1, False, 0.5, 25.0),
    "one, with quotas": Bar(1, True, 0.8, 25.0),
    "1,000": Bar(CROWD, False, 0.0, 100.0),
}
CONNECTION_BYTES = 512 << 10  # What a connection may hold beside the limits: a read, and what is being made of it.


class Found(NamedTuple):
    """What one attack did."""

    latency: Latency
    share: float  # Of the rate without an attack.
    grown_bytes: int  # Of the broker's memory, at its peak.
    busy: float  # The share of a core that the attack takes of the broker.

    def misses(self, bar: Bar) -> list[str]:
        missed = []
        if self.latency.errors or not self.latency.per_second:
            missed.append("errors")
        if self.share < bar.share_min:
            missed.append("rate")
        if self.latency.p99_ms > bar.p99_ms_max:
            missed.append("p99")
        if self.grown_bytes > memory_bytes_max(bar.connections):
            missed.append("memory")
        return missed


def memory_bytes_max(connections: int) -> int:
    """By how much the memory of the broker may grow."""
    return len(LIMITS) * LIMIT_BYTES + connections * CONNECTION_BYTES


# ── The hostile side ──────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def under(name: str, ports: Ports, connections: int) -> Iterator[None]:
    """Run an attack in a separate process."""
    numbers = map(str, (*ports, connections))
    command = [sys.executable, "-m", "bench.hostile", "--attack", name, "--with", *numbers]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"the attack {name!r} ended by itself")
    finally:
        process.kill()
        process.wait()


def attack(name: str, http: int, lines: int, connections: int) -> None:
    os.sched_setaffinity(0, {LOAD_CORE})
    os.nice(10)  # The honest client shares the core with it.
    attacks.run(name, Ports(http, lines), connections)


# ── The honest side ───────────────────────────────────────────────────────────────────────────────────────────


def honest(port: int, seconds: float) -> Latency:
    conversation = Publish(request("POST", "/messages/honest", BODY, token=TOKEN))
    try:
        return one_at_a_time(port, conversation, warm_seconds=WARM_SECONDS, seconds=seconds)
    except (StoppedError, OSError) as error:
        return Latency(seconds * 1e3, seconds * 1e3, seconds * 1e3, 0.0, 1, str(error))  # The client got no answer.


def prepare(ports: Ports, queues: int, stock: int) -> None:
    """Create queues to list and messages to search."""
    names = ["honest", "attack", "stock", "empty", *(f"queue-{number}" for number in range(queues))]
    with connect(ports.http, blocking=True) as link:
        for name in names:
            _ask(link, request("PUT", f"/queues/{name}", SETTINGS, token=TOKEN))
        batch = (b"--b\r\n\r\n" + BODY + b"\r\n") * PARTS + b"--b--\r\n"
        multipart = "Content-Type: multipart/mixed; boundary=b"
        for _ in range(stock // PARTS):
            _ask(link, request("POST", "/messages/stock", batch, multipart, token=TOKEN))


def _ask(link: socket.socket, sent: bytes) -> None:
    """Send one request and read the whole answer; only its status is checked."""
    link.sendall(sent)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += link.recv(attacks.READ_BYTES)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head[9:11] == b"20", head
    length = next(
        (int(field[15:]) for field in head.lower().split(b"\r\n") if field.startswith(b"content-length:")), 0
    )
    while len(body) < length:
        body += link.recv(attacks.READ_BYTES)


# ── Measuring ─────────────────────────────────────────────────────────────────────────────────────────────────


def resident_bytes(pid: int, field: str) -> int:
    """`VmRSS`: the memory of a process; `VmHWM`: its peak."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(row.split()[1]) << 10 for row in status.splitlines() if row.startswith(field))


def measure(broker: Broker, name: str, bar: Bar, alone: float, seconds: float) -> Found:
    ports = Ports(broker.port, broker.lines_port)
    Path(f"/proc/{broker.pid}/clear_refs").write_text("5")  # Forget the peak so far.
    before = resident_bytes(broker.pid, "VmRSS")
    with under(name, ports, bar.connections):
        latency = on_load_core(honest, ports.http, seconds)
        busy = busy_share(broker.pid)
    grown = resident_bytes(broker.pid, "VmHWM") - before
    return Found(latency, latency.per_second / max(alone, 1.0), grown, busy)


def busy_share(pid: int) -> float:
    """The share of a core that a process uses now."""
    before, began = machine.cpu_seconds(pid), time.perf_counter()
    time.sleep(ALONE_SECONDS)
    return (machine.cpu_seconds(pid) - before) / (time.perf_counter() - began)


def options(*, quotas: bool) -> tuple[str, ...]:
    settings = [f"auth.tokens={TOKEN},{attacks.TOKEN}", *(f"{name}={LIMIT_BYTES}" for name in LIMITS)]
    settings += [f"quota.address.{name}={limit}" for name, limit in QUOTAS.items()] if quotas else []
    return tuple(part for setting in settings for part in ("--set", setting))


def compare(scratch: Path, chosen: list[str], bars: dict[str, Bar], asked: Asked) -> dict[str, dict[str, Found]]:
    """What each attack did, by bar and name. One broker serves all that have the same settings."""
    found: dict[str, dict[str, Found]] = {title: {} for title in bars}
    for quotas in sorted({bar.quotas for bar in bars.values()}):
        with scratch_directory(scratch) as folder:
            broker = Broker(folder, options(quotas=False))
            broker.start()
            try:
                prepare(Ports(broker.port, broker.lines_port), asked.queues, asked.stock)
                if quotas:
                    broker.end()
                    broker.options = options(quotas=True)
                    broker.start()
                for title, bar in bars.items():
                    if bar.quotas == quotas:
                        found[title] = attacked(broker, chosen, title, bar, asked)
            finally:
                broker.end()
    return found


def attacked(broker: Broker, chosen: list[str], title: str, bar: Bar, asked: Asked) -> dict[str, Found]:
    """The client's rate alone is taken anew for each few attacks: it changes while the broker fills."""
    found: dict[str, Found] = {}
    alone = 0.0
    for index, name in enumerate(chosen):
        if index % ATTACKS_PER_BASELINE == 0:
            alone = on_load_core(honest, broker.port, asked.seconds).per_second
        found[name] = each = measure(broker, name, bar, alone, asked.seconds)
        print(f"{title}: {name}: {_facts(each)} {' '.join(each.misses(bar))}", flush=True)
    return found


# ── The report ────────────────────────────────────────────────────────────────────────────────────────────────


def show(found: dict[str, dict[str, Found]], bars: dict[str, Bar], console: Console) -> int:
    """Print a table, and return how many attacks missed a bar."""
    table = Table("beside", *(f"{title}: share, p99, memory, broker" for title in bars))
    missed = 0
    for name in next(iter(found.values())):
        cells = []
        for title, bar in bars.items():
            each = found[title][name]
            misses = each.misses(bar)
            missed += bool(misses)
            cells.append(f"{_facts(each)}  MISSED: {', '.join(misses)}" if misses else _facts(each))
        table.add_row(name, *cells)
    wanted = [_wanted(bar) for bar in bars.values()]
    table.add_row("the bar", *wanted)
    console.print(table)
    return missed


def _facts(each: Found) -> str:
    return f"{each.share:.0%}  {each.latency.p99_ms:.1f} ms  {each.grown_bytes >> 20} MiB  {each.busy:.0%}"


def _wanted(bar: Bar) -> str:
    share = f"≥ {bar.share_min:.0%}  " if bar.share_min else ""
    return f"{share}≤ {bar.p99_ms_max:.0f} ms  ≤ {memory_bytes_max(bar.connections) >> 20} MiB"


def document(found: dict[str, dict[str, Found]]) -> dict[str, dict[str, dict[str, float]]]:
    return {
        title: {
            name: {
                "share": round(each.share, 3),
                "per_second": round(each.latency.per_second, 1),
                "p99_ms": round(each.latency.p99_ms, 3),
                "grown_bytes": each.grown_bytes,
                "busy": round(each.busy, 3),
            }
            for name, each in by_name.items()
        }
        for title, by_name in found.items()
    }


class Asked(argparse.Namespace):
    names: list[str]
    bar: list[str]
    seconds: float
    queues: int
    stock: int
    scratch: Path
    attack: str | None
    numbers: list[int]


def parse() -> Asked:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help=f"all unless named: {', '.join(ATTACKS)}")
    parser.add_argument("--bar", action="append", choices=BARS, help="only these; may be repeated")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--queues", type=int, default=QUEUES)
    parser.add_argument("--stock", type=int, default=STOCK)
    parser.add_argument("--scratch", type=machine.scratch, default=Path(__file__).parent / "scratch")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--with", dest="numbers", type=int, nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args(namespace=Asked())


def main() -> int:
    asked = parse()
    if asked.attack:
        attack(asked.attack, *asked.numbers)
    bars = {title: bar for title, bar in BARS.items() if title in (asked.bar or BARS)}
    asked.scratch.mkdir(parents=True, exist_ok=True)
    found = compare(asked.scratch, asked.names or list(ATTACKS), bars, asked)
    missed = show(found, bars, Console(width=150))
    if not asked.names and not asked.bar:
        facts = {
            "machine": machine.facts(asked.scratch),
            "bars": msgspec.to_builtins(BARS),
            "beside": document(found),
        }
        report.write_json(Path(__file__).parent / "hostile.json", facts)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
