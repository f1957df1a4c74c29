"""What a log in PostgreSQL costs, next to one in files: `python -m bench store`.

Both brokers take turns; medians are kept. PostgreSQL runs on the same core as the broker, with fsync on and without
standbys. The processor time is that of the broker alone.
"""

import contextlib
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress

from bench import machine
from bench.cores import on_load_core
from bench.driver import HOST
from bench.load import CONNECTIONS, QUEUE, publish_alone, publish_rate
from bench.peers import postgresql
from bench.penstock import Broker, broker, find_penstock
from bench.servers import scratch_directory

ROUNDS = 3
WARM_SECONDS, SECONDS = 0.5, 3.0

Found = dict[str, float]


def store(progress: Progress, scratch: Path, rounds: int) -> Found:
    samples: dict[str, list[float]] = defaultdict(list)
    task = progress.add_task("store", total=rounds * 2)
    for _ in range(rounds):
        for name, server in (("files", broker(scratch)), ("postgresql", on_postgresql(scratch))):
            with server as started:
                started.make_queue(QUEUE)
                for figure, value in _measure(started).items():
                    samples[f"{name}_{figure}"].append(value)
            progress.advance(task)
    return {"rounds": rounds} | _summary({name: statistics.median(values) for name, values in samples.items()})


def _measure(server: Broker) -> Found:
    alone = on_load_core(publish_alone, server.port, WARM_SECONDS, SECONDS)
    before = machine.cpu_seconds(server.pid)
    count = on_load_core(publish_rate, server.port, CONNECTIONS, WARM_SECONDS, SECONDS)
    used = machine.cpu_seconds(server.pid) - before
    assert not count.errors, count.complaint
    return {
        "p50_milliseconds": alone.p50_ms,
        "messages_per_second": count.per_second,
        "microseconds_per_message": used / count.with_warm_up * 1e6,
    }


def _summary(medians: Found) -> Found:
    rate, cost = "messages_per_second", "microseconds_per_message"
    return medians | {
        "rate_to_files": medians[f"postgresql_{rate}"] / medians[f"files_{rate}"],
        "cost_to_files": medians[f"postgresql_{cost}"] / medians[f"files_{cost}"],
    }


@contextlib.contextmanager
def on_postgresql(scratch: Path) -> Iterator[Broker]:
    with scratch_directory(scratch) as directory, postgresql.started(directory) as port:
        url = f"postgresql://{postgresql.USER}@{HOST}:{port}/{postgresql.DATABASE}"
        program = find_penstock()
        assert program is not None
        subprocess.run([program, "store", "init", url], check=True, capture_output=True)
        with broker(scratch, f"--store={url}") as server:
            yield server
