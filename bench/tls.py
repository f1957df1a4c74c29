"""What TLS costs: messages with and without it, and handshakes: `python -m bench tls`.

The bare server does the same work with the TLS of uvloop, so its figures show what the layer of Penstock costs
(`penstock/shells/secure.py`) and what encryption costs anywhere. Servers take turns; medians are kept. Rates
depend on what else runs on the machine; the server's processor time for one message or handshake depends on it less.
"""

import contextlib
import ssl
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress

from bench import machine
from bench.cores import on_load_core
from bench.driver import Count, closed_loop, connect
from bench.load import CONNECTIONS, QUEUE, Publish, post
from bench.penstock import broker
from bench.servers import accepts, free_port, running, scratch_directory
from penstock.cli.tls import write_pair

ROUNDS = 5
WARM_SECONDS, SECONDS = 0.5, 2.0
HANDSHAKE_SECONDS = 1.5

Found = dict[str, float]
Samples = dict[str, list[float]]
Serving = contextlib.AbstractContextManager[tuple[int, int]]  # Its port and its process.


def tls(progress: Progress, scratch: Path, rounds: int) -> Found:
    samples: Samples = defaultdict(list)
    task = progress.add_task("tls", total=rounds * 4)
    with scratch_directory(scratch) as directory:
        pair = directory / "penstock.pem", directory / "penstock.key"
        write_pair(*pair, ["127.0.0.1"], 1)
        for _ in range(rounds):
            for name, files in (("plain", ()), ("tls", pair)):
                for server in (_penstock, _bare):
                    _measure(samples, f"{server.__name__[1:]}_{name}", server(scratch, files), files)
                    progress.advance(task)
    return {"rounds": rounds} | _summary({name: statistics.median(values) for name, values in samples.items()})


def _measure(samples: Samples, name: str, server: Serving, files: tuple[Path, ...]) -> None:
    ca = str(files[0]) if files else ""
    with server as (port, pid):
        before = machine.cpu_seconds(pid)
        count = on_load_core(publish_rate, port, ca)
        used = machine.cpu_seconds(pid) - before
        assert not count.errors, count.complaint
        samples[f"{name}_messages_per_second"].append(count.per_second)
        samples[f"{name}_microseconds_per_message"].append(used / count.with_warm_up * 1e6)
        if ca:
            before = machine.cpu_seconds(pid)
            handshakes, seconds = on_load_core(handshakes_made, port, ca)
            used = machine.cpu_seconds(pid) - before
            samples[f"{name}_handshakes_per_second"].append(handshakes / seconds)
            samples[f"{name}_microseconds_per_handshake"].append(used / handshakes * 1e6)


def _summary(medians: Found) -> Found:
    """The figures, and what they mean: a ratio of 1 costs as much as the other."""

    def ratio(one: str, other: str, unit: str = "microseconds_per_message") -> float:
        return medians[f"{one}_{unit}"] / medians[f"{other}_{unit}"]

    return medians | {
        "cost_of_tls": ratio("penstock_tls", "penstock_plain"),
        "cost_of_tls_in_bare": ratio("bare_tls", "bare_plain"),
        "cost_to_bare_with_tls": ratio("penstock_tls", "bare_tls"),
        "cost_to_bare_without_tls": ratio("penstock_plain", "bare_plain"),
        "cost_of_handshakes_to_bare": ratio("penstock_tls", "bare_tls", "microseconds_per_handshake"),
    }


@contextlib.contextmanager
def _penstock(scratch: Path, files: tuple[Path, ...]) -> Iterator[tuple[int, int]]:
    options = [f"--tls-certificate={files[0]}", f"--tls-key={files[1]}"] if files else []
    with broker(scratch, *options, tls=trusting(str(files[0])) if files else None) as server:
        server.make_queue(QUEUE)
        yield server.port, server.pid


@contextlib.contextmanager
def _bare(scratch: Path, files: tuple[Path, ...]) -> Iterator[tuple[int, int]]:
    port = free_port()
    with scratch_directory(scratch) as directory:
        command = [sys.executable, "-m", "bench.bare", port, directory, *files]
        with running(command, directory, lambda: accepts(port)) as process:
            yield port, process.pid


# On the core of the load


def trusting(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def publish_rate(port: int, ca: str) -> Count:
    conversations = [Publish(post()) for _ in range(CONNECTIONS)]
    context = trusting(ca) if ca else None
    return closed_loop(port, conversations, warm_seconds=WARM_SECONDS, seconds=SECONDS, tls=context)


def handshakes_made(port: int, ca: str) -> tuple[int, float]:
    """One new connection after the other, each with a full handshake: how many, and in how many seconds."""
    context, count = trusting(ca), 0
    began = time.perf_counter()
    while time.perf_counter() - began < HANDSHAKE_SECONDS:
        connect(port, tls=context).close()
        count += 1
    return count, time.perf_counter() - began
