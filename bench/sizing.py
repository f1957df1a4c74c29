"""What messages of 1 KB cost, and what a rate of them needs.

`python -m bench sizing` measures. `python -m bench.sizing` computes the tables of docs/deploy/sizing.md from the
recorded runs (`sizing.json`, `link.json`). Every message is published once and consumed once. Processes use 60 % of
their cores, so that there is time for bursts, for snapshots, and for the queues of a process that has died.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress

from bench import machine, nq
from bench.cores import on_load_core
from bench.driver import Count, closed_loop
from bench.load import CONNECTIONS, QUEUE, consume_rate, publish_rate
from bench.penstock import NQ_CONNECTIONS, Broker, broker
from bench.servers import scratch_directory
from bench.store import on_postgresql

ROUNDS = 3
WARM_SECONDS, SECONDS = 0.3, 2.0
BODY = (b"0123456789abcdef" * 64)[:1024]
BUSY = 0.6  # Of a core, when all is well.
RATES = (10_000, 100_000, 1_000_000)
SHARDS_PER_WORKER = 4  # So that those of one that has died can be spread over others.

Found = dict[str, float]


# ── Measured ────────────────────────────────────────────────────────────────────────────────────────────────────


def sizing(progress: Progress, scratch: Path, rounds: int) -> Found:
    samples: dict[str, list[float]] = defaultdict(list)
    task = progress.add_task("sizing", total=rounds * 2)
    for _ in range(rounds):
        with broker(scratch) as server:
            _note(samples, "", _measure(server))
        progress.advance(task)
        with scratch_directory(scratch) as directory, on_postgresql(directory) as server:
            _note(samples, "postgresql_", _measure_store(server, directory))
        progress.advance(task)
    return {"rounds": rounds, "body_bytes": len(BODY)} | {
        name: statistics.median(values) for name, values in samples.items()
    }


def _note(samples: dict[str, list[float]], prefix: str, found: Found) -> None:
    for name, value in found.items():
        samples[prefix + name].append(value)


def _measure(server: Broker) -> Found:
    server.make_queue(QUEUE)
    used = {
        "one_publish": _cost(server.pid, publish_rate, server.port, CONNECTIONS, WARM_SECONDS, SECONDS, QUEUE, BODY)
    }
    used["one_consume"] = _cost(server.pid, consume_rate, server.port, CONNECTIONS, WARM_SECONDS, SECONDS / 2)
    used["many_publish"] = _cost(server.pid, post_rate, server.port)
    used["many_consume"] = _cost(server.pid, nq.pull_rate, server.port, NQ_CONNECTIONS, WARM_SECONDS, SECONDS / 2)
    return {f"{name}_microseconds_per_message": cost for name, (cost, _) in used.items()}


def _measure_store(server: Broker, directory: Path) -> Found:
    postmaster = int(next(directory.rglob("postmaster.pid")).read_text().split()[0])
    before = sum(map(machine.cpu_seconds, machine.processes(postmaster)))
    cost, count = _cost(server.pid, post_rate, server.port)
    used = sum(map(machine.cpu_seconds, machine.processes(postmaster))) - before
    return {
        "many_publish_microseconds_per_message": cost,
        "own_microseconds_per_message": used / count.with_warm_up * 1e6,
        "megabytes_per_second_of_a_shard": count.per_second * len(BODY) / 1e6,
    }


def _cost(pid: int, load: Callable[..., Count], *arguments: object) -> tuple[float, Count]:
    before = machine.cpu_seconds(pid)
    count = on_load_core(load, *arguments)
    assert not count.errors, count.complaint
    return (machine.cpu_seconds(pid) - before) / count.with_warm_up * 1e6, count


def post_rate(port: int) -> Count:
    posts = [nq.Post(body=BODY) for _ in range(NQ_CONNECTIONS)]
    return closed_loop(port, posts, warm_seconds=WARM_SECONDS, seconds=SECONDS)


# ── Computed ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Costs:
    """Of one message, in microseconds of a core."""

    message: float  # Published and consumed in the process that has its queue.
    forwarded: float  # How many times that it costs in another process.
    store: float  # What PostgreSQL adds in the broker.
    postgresql: float  # What it costs in PostgreSQL itself.


@dataclass(frozen=True)
class Need:
    workers: int
    shards: int
    postgresql_cores: int
    log_megabytes_per_second: float


def need(rate: float, size: int, costs: Costs, *, store: bool) -> Need:
    """Workers share the queues evenly, and clients connect to any: all but 1 of n messages are forwarded."""
    workers = 1
    while rate * _microseconds(costs, workers, store=store) > workers * BUSY * 1e6:
        workers += 1
    shards = 1 if workers == 1 else workers * SHARDS_PER_WORKER
    cores = math.ceil(rate * costs.postgresql / 1e6 / BUSY) if store else 0
    return Need(workers, shards, cores, rate * size / 1e6)


def _microseconds(costs: Costs, workers: int, *, store: bool) -> float:
    elsewhere = (workers - 1) / workers
    return costs.message * (1 + (costs.forwarded - 1) * elsewhere) + (costs.store if store else 0.0)


def recorded(way: str, messages: int, folder: Path = Path(__file__).parent) -> Costs:
    """`way`: `one` or `many` messages a request."""
    found, links = (json.loads((folder / f"{name}.json").read_text()) for name in ("sizing", "link"))
    unit = "microseconds_per_message"
    return Costs(
        message=found[f"{way}_publish_{unit}"] + found[f"{way}_consume_{unit}"],
        forwarded=links[f"forwarded_{messages}_to_local"],
        store=max(0.0, found[f"postgresql_many_publish_{unit}"] - found[f"many_publish_{unit}"]),
        postgresql=found[f"postgresql_own_{unit}"],
    )


def table(way: str, messages: int) -> Iterator[str]:
    """In Markdown."""
    costs = recorded(way, messages)
    yield "| messages a second | log | workers, files | workers, PostgreSQL | shards | cores of PostgreSQL |"
    yield "|---|---|---|---|---|---|"
    for rate in RATES:
        files, store = (need(rate, len(BODY), costs, store=store) for store in (False, True))
        log = f"{files.log_megabytes_per_second:,.0f} MB/s"
        yield (
            f"| {rate:,} | {log} | {files.workers} | {store.workers} | {store.shards} | {store.postgresql_cores} |"
        )


if __name__ == "__main__":
    for title, way, messages in (("One message a request", "one", 1), ("100 messages a request", "many", 100)):
        print(f"{title}:\n", *table(way, messages), "", sep="\n")
