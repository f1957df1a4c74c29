"""How fast the pipeline fills all its tables, and how late: `python -m bench.pipeline`.

Throughput: the pipeline reads an existing log with complete lives of messages; events per second over all tables, not
counting the first batch, which includes the start. Lag: a broker runs with a steady load and the pipeline with its
default triggers; seconds from an event to its row. Publishing: publishers run at full rate, alone, next to the
pipeline, and next to a loop that only counts, which shows what a busy core costs the other one.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench import lives, load, machine, report
from bench.cores import LOAD_CORE, on_load_core, on_server_core
from tests.support.broker import Broker

EVENTS = 6_000_000
RATE = 10_000  # Events a second of the steady load.
SECONDS = 80.0
BATCHES_TOLD = 3
EVENTS_PER_PUBLISH = 2  # L and Q.
CONNECTIONS = 64
ROUNDS = 3
ROUND_SECONDS = 14.0
_BEHIND = ("nice", "-n", "19", "taskset", "--cpu-list", str(LOAD_CORE))
_BATCH = re.compile(
    r"batch (\d+): (\d+) events up to offset \d+ in ([\d.]+) s, (?:([\d.]+) s|\w+) after they happened"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--only", choices=["throughput", "lag", "publishing"])
    parser.add_argument("--scratch", type=machine.scratch, default=Path(__file__).parent / "scratch")
    asked = parser.parse_args()
    asked.scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="pipeline-", dir=asked.scratch))
    found: dict[str, float] = {}
    try:
        if asked.only in (None, "throughput"):
            found |= throughput(folder / "throughput", asked.events)
        if asked.only in (None, "lag"):
            found |= lag(folder / "lag", asked.seconds)
        if asked.only in (None, "publishing"):
            found |= publishing(folder / "publishing")
        facts = {"machine": machine.facts(folder), "events": asked.events, **found}
    finally:
        shutil.rmtree(folder)
    table = Table("figure", "value", title="The pipeline fills its tables")
    for name, value in found.items():
        table.add_row(name.replace("_", " "), f"{value:,.0f}" if value > 100 else f"{value:.2f}")
    Console().print(table)
    whole = asked.only is None and asked.events == EVENTS
    report.write_json(Path(__file__).parent / ("pipeline.json" if whole else "pipeline-partial.json"), facts)


def throughput(folder: Path, events: int) -> dict[str, float]:
    lives.make(folder / "data", events // lives.EVENTS_PER_MESSAGE)
    command = _run(folder, "--data", str(folder / "data"), "--once")
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    batches = [match.groups() for match in map(_BATCH.match, ended.stdout.splitlines()) if match]
    assert sum(int(batch[1]) for batch in batches) == events, ended.stdout
    warm = [batch for batch in batches[1:] if int(batch[1]) > 100_000]
    rates = [int(batch[1]) / float(batch[2]) for batch in warm]
    return {"events_per_second": sum(rates) / len(rates), "events_per_second_of_the_last_batch": rates[-1]}


def lag(folder: Path, seconds: float) -> dict[str, float]:
    """How late rows are under a steady load, once the pipeline is warm."""
    broker = Broker(folder / "data").start()
    try:
        broker.create_queue(load.QUEUE)
        with pipeline(folder, broker) as running:
            paced = (CONNECTIONS, RATE / EVENTS_PER_PUBLISH, seconds, seconds / 2)
            on_load_core(load.publish_paced, broker.http[1], *paced)
    finally:
        broker.stop()
    assert len(running.lags) > BATCHES_TOLD, "the pipeline was not warm before the load ended"
    settled = running.lags[-BATCHES_TOLD:]
    return {"lag_seconds_median": median(settled), "lag_seconds_highest": max(settled)}


def publishing(folder: Path) -> dict[str, float]:
    """The rate of publishers while the broker has one core and they have the other one, alone or shared. The cases
    take turns, so that a ratio compares measurements of the same round; processes of the other cases are stopped."""
    with on_server_core():
        broker = Broker(folder / "data").start()
    rates: dict[str, list[float]] = {"alone": [], "beside_counting": [], "beside_the_pipeline": []}
    try:
        broker.create_queue(load.QUEUE)
        with counting() as counter, pipeline(folder, broker, *_BEHIND) as running:
            with resting(counter):
                _publish_rate(broker)  # Gives the pipeline a first batch.
                wait_until(lambda: bool(running.lags))
            batches = len(running.lags)
            for _ in range(ROUNDS):
                with resting(counter), resting(running.pid):
                    rates["alone"].append(_publish_rate(broker))
                with resting(running.pid):
                    rates["beside_counting"].append(_publish_rate(broker))
                with resting(counter):
                    rates["beside_the_pipeline"].append(_publish_rate(broker))
            assert len(running.lags) > batches, "the pipeline did nothing meanwhile"
    finally:
        broker.stop()
    found = {f"published_per_second_{name}": median(each) for name, each in rates.items()}
    for other in ("alone", "beside_counting"):
        pairs = zip(rates["beside_the_pipeline"], rates[other], strict=True)
        found[f"published_beside_the_pipeline_to_{other}"] = median([beside / rate for beside, rate in pairs])
    return found


def _publish_rate(broker: Broker) -> float:
    return on_load_core(load.publish_rate, broker.http[1], CONNECTIONS, 1.0, ROUND_SECONDS).per_second


@contextlib.contextmanager
def resting(pid: int) -> Iterator[None]:
    """Stop a process and its descendants for the time of the block."""
    found = machine.processes(pid)
    _signal(found, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(found, signal.SIGCONT)


def _signal(found: list[int], number: signal.Signals) -> None:
    for each in found:
        with contextlib.suppress(ProcessLookupError):  # Workers come and go.
            os.kill(each, number)


@contextlib.contextmanager
def counting() -> Iterator[int]:
    child = subprocess.Popen([*_BEHIND, sys.executable, "-c", "while True: sum(range(10_000))"])
    try:
        yield child.pid
    finally:
        child.kill()
        child.wait()


class Running(NamedTuple):
    pid: int
    lags: list[float]  # For each batch: how late its last event was.


@contextlib.contextmanager
def pipeline(folder: Path, broker: Broker, *prefix: str) -> Iterator[Running]:
    host, port = broker.http
    command = _run(folder, "--url", f"http://{host}:{port}")
    child = subprocess.Popen([*prefix, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    running = Running(child.pid, [])

    def listen() -> None:
        for line in child.stdout or ():
            match = _BATCH.match(line)
            if match:
                running.lags.append(float(match[4]))

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield running
    finally:
        child.terminate()
        child.wait()


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _run(folder: Path, *flags: str) -> list[str]:
    lake = ["--lake", str(folder / "lake"), "--master", "local[2]"]
    return [sys.executable, "-m", "penstock.cli", "pipeline", "run", *lake, *flags]


if __name__ == "__main__":
    main()
