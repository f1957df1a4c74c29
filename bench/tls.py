"""What TLS costs: messages a second with and without it, and handshakes a second: `python -m bench tls`.

The bare server does the same work with the TLS of uvloop, so its figures show what the layer of Penstock costs
(`penstock/server/shells/secure.py`) and what encryption costs anywhere. Servers take turns; medians are kept.
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


def tls(progress: Progress, scratch: Path, rounds: int) -> Found:
    samples: dict[str, list[float]] = defaultdict(list)
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


def _measure(
    samples: dict[str, list[float]],
    name: str,
    server: contextlib.AbstractContextManager[int],
    files: tuple[Path, ...],
) -> None:
    ca = str(files[0]) if files else ""
    with server as port:
        count = on_load_core(publish_rate, port, ca)
        assert not count.errors, count.complaint
        samples[f"{name}_messages_per_second"].append(count.per_second)
        samples[f"{name}_load_cpu_share"].append(count.load_cpu_share)
        if ca:
            samples[f"{name}_handshakes_per_second"].append(on_load_core(handshake_rate, port, ca))


def _summary(medians: Found) -> Found:
    """The figures, and what they mean: a ratio of 1 is as fast as the other."""

    def ratio(one: str, other: str) -> float:
        return medians[one] / medians[other]

    return medians | {
        "tls_to_plain": ratio("penstock_tls_messages_per_second", "penstock_plain_messages_per_second"),
        "bare_tls_to_plain": ratio("bare_tls_messages_per_second", "bare_plain_messages_per_second"),
        "tls_to_bare_tls": ratio("penstock_tls_messages_per_second", "bare_tls_messages_per_second"),
        "plain_to_bare_plain": ratio("penstock_plain_messages_per_second", "bare_plain_messages_per_second"),
        "handshakes_to_bare": ratio("penstock_tls_handshakes_per_second", "bare_tls_handshakes_per_second"),
    }


@contextlib.contextmanager
def _penstock(scratch: Path, files: tuple[Path, ...]) -> Iterator[int]:
    options = [f"--tls-certificate={files[0]}", f"--tls-key={files[1]}"] if files else []
    with broker(scratch, *options, tls=trusting(str(files[0])) if files else None) as server:
        server.make_queue(QUEUE)
        yield server.port


@contextlib.contextmanager
def _bare(scratch: Path, files: tuple[Path, ...]) -> Iterator[int]:
    port = free_port()
    with scratch_directory(scratch) as directory:
        command = [sys.executable, "-m", "bench.bare", port, directory, *files]
        with running(command, directory, lambda: accepts(port)):
            yield port


# On the core of the load


def trusting(ca: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca)


def publish_rate(port: int, ca: str) -> Count:
    conversations = [Publish(post()) for _ in range(CONNECTIONS)]
    context = trusting(ca) if ca else None
    return closed_loop(port, conversations, warm_seconds=WARM_SECONDS, seconds=SECONDS, tls=context)


def handshake_rate(port: int, ca: str) -> float:
    """One new connection after the other, each with a full handshake."""
    context, count = trusting(ca), 0
    began = time.perf_counter()
    while time.perf_counter() - began < HANDSHAKE_SECONDS:
        connect(port, tls=context).close()
        count += 1
    return count / (time.perf_counter() - began)
