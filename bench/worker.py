"""How fast a worker runs jobs that do nothing, beside Celery and RQ on Redis: `python -m bench worker`.

Two figures each. *Drain*: jobs are waiting, and one worker runs them; the middle of the queue is timed, so that
starting up does not count. *End to end*: a worker waits, and a producer sends jobs as fast as it can; timed from the
start of the producer to the end of the last job.

Everything is durable: Penstock as always, Redis with `appendfsync always`. The server has a core of its own. Celery
and RQ get fewer jobs, because they would take minutes. RQ runs its `SimpleWorker`, because the usual one, which forks
for each job, is slower.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.progress import Progress

from bench import machine
from bench.driver import HOST, StoppedError
from bench.peers import redis
from bench.penstock import broker
from bench.servers import begin, end
from bench.targets import Plan, importable

JOBS = 100_000
CELERY_JOBS, RQ_JOBS = 10_000, 4_000
SECONDS_MAX = 240.0
LOOK_SECONDS = 0.01
WARM_SHARE, END_SHARE = 0.1, 0.9

Found = dict[str, float]


@dataclass
class System:
    """A server that is running, and the commands of its worker and its producer."""

    name: str
    jobs: int
    worker: list[str]
    producer: list[str]
    left: Callable[[], int]  # Jobs that are not done.
    log: Path
    environment: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def working(self) -> Iterator[subprocess.Popen[bytes]]:
        # Not on the server's core only: `begin` pins it there, so the worker is set free.
        process = begin(self.worker, self.log, environment=self.environment)
        for pid in machine.processes(process.pid):
            os.sched_setaffinity(pid, range(os.cpu_count() or 1))
        try:
            yield process
        finally:
            end(process)

    def send(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*self.producer, str(self.jobs)], env={**os.environ, **self.environment})


def worker(progress: Progress, scratch: Path, jobs: int) -> Found:
    task = progress.add_task("workers", total=None)
    found: Found = {"jobs": jobs}
    with penstock_started(scratch, jobs) as system:
        progress.update(task, description="Penstock")
        found |= measure(system)
    for name, peer in (("celery", celery_started), ("rq", rq_started)):
        progress.update(task, description=name)
        if importable(name) and redis.find():
            with peer(scratch) as system:
                found |= measure(system)
            for figure in ("drain", "end_to_end"):
                ours, theirs = found[f"penstock_{figure}_per_second"], found[f"{name}_{figure}_per_second"]
                found[f"penstock_to_{name}_{figure}"] = ours / theirs
    progress.remove_task(task)
    return found


def measure(system: System) -> Found:
    sent = time.monotonic()
    producer = system.send()
    if producer.wait(SECONDS_MAX):
        raise StoppedError(f"the producer of {system.name} has failed")
    found = {f"{system.name}_send_per_second": system.jobs / (time.monotonic() - sent)}
    with system.working() as process:
        rate, cpu_us = drain(system, process.pid)
    found |= {f"{system.name}_drain_per_second": rate, f"{system.name}_worker_cpu_us_each": cpu_us}
    with system.working():
        time.sleep(2.0)  # Until it has connected: nothing that is measured can tell.
        begun = time.monotonic()
        producer = system.send()
        wait_until_left(system, 0, producer)
        found[f"{system.name}_end_to_end_per_second"] = system.jobs / (time.monotonic() - begun)
    return found


def drain(system: System, pid: int) -> tuple[float, float]:
    """Jobs a second in the middle of the queue, and the processor time of the worker for each."""
    first = wait_until_left(system, int(system.jobs * END_SHARE))
    begun, used = time.monotonic(), cpu_seconds(pid)
    last = wait_until_left(system, int(system.jobs * WARM_SHARE))
    seconds, used = time.monotonic() - begun, cpu_seconds(pid) - used
    wait_until_left(system, 0)
    return (first - last) / seconds, used / (first - last) * 1e6


def cpu_seconds(pid: int) -> float:
    return sum(map(machine.cpu_seconds, machine.processes(pid)))


def wait_until_left(system: System, count: int, producer: subprocess.Popen[bytes] | None = None) -> int:
    """Until no more than so many jobs are left, and the producer has ended. How many are left."""
    deadline = time.monotonic() + SECONDS_MAX
    while (left := system.left()) > count or (producer is not None and producer.poll() is None):
        if time.monotonic() > deadline:
            raise StoppedError(f"{system.name}: {left} jobs are left after {SECONDS_MAX:g} s")
        time.sleep(LOOK_SECONDS)
    return left


@contextlib.contextmanager
def penstock_started(scratch: Path, jobs: int) -> Iterator[System]:
    with broker(scratch) as penstock:
        url = f"http://{HOST}:{penstock.port}"
        command = [sys.executable, "-m", "penstock.cli", "worker", "bench.noop.penstock_tasks:app"]
        yield System(
            "penstock",
            jobs,
            [*command, "--queues", "noop", "--log-level", "warning"],
            [sys.executable, "-m", "bench.noop.penstock_tasks"],
            lambda: penstock.waiting("noop"),
            penstock.directory / "worker.log",
            {"PENSTOCK_URL": url},
        )


@contextlib.contextmanager
def redis_started(scratch: Path, keys: tuple[tuple[str, str], ...]) -> Iterator[tuple[str, Callable[[], int]]]:
    """The address of a Redis, and how many entries these lists and hashes of it have."""
    from redis import Redis

    with redis.started(Plan(0, 0, scratch)) as port, Redis(HOST, port) as link:
        yield f"redis://{HOST}:{port}/0", lambda: sum(int(getattr(link, count)(key)) for count, key in keys)


@contextlib.contextmanager
def celery_started(scratch: Path) -> Iterator[System]:
    with redis_started(scratch, (("llen", "celery"), ("hlen", "unacked"))) as (url, left):
        options = ["--concurrency", "2", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        command = [
            sys.executable,
            "-m",
            "celery",
            "--app",
            "bench.noop.celery_tasks",
            "worker",
            "--loglevel",
            "ERROR",
        ]
        producer = [sys.executable, "-m", "bench.noop.celery_tasks"]
        log = scratch / "celery-worker.log"
        yield System("celery", CELERY_JOBS, [*command, *options], producer, left, log, {"BENCH_REDIS": url})


@contextlib.contextmanager
def rq_started(scratch: Path) -> Iterator[System]:
    with redis_started(scratch, (("llen", "rq:queue:noop"), ("zcard", "rq:wip:noop"))) as (url, left):
        command = [sys.executable, "-m", "rq.cli", "worker", "noop", "--url", url, "--quiet"]
        command += ["--worker-class", "rq.worker.SimpleWorker"]
        producer = [sys.executable, "-m", "bench.noop.rq_tasks"]
        yield System("rq", RQ_JOBS, command, producer, left, scratch / "rq-worker.log", {"BENCH_REDIS": url})
