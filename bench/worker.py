"""How fast a worker runs jobs that do nothing, beside Celery and RQ on Redis: `python -m bench worker`.

Two figures each. *Drain*: jobs are waiting, and one worker runs them; the middle of the queue is timed, so that
starting up does not count. *End to end*: a worker waits, and a producer sends jobs as fast as it can; timed from the
first job that is stored to the end of the last one.

Penstock is durable, and so is Redis with `appendfsync always`. Celery and RQ are measured with `everysec` too, which
may lose the last second. The server has a core of its own. Celery and RQ get fewer jobs, because they would take
minutes. RQ runs its `SimpleWorker`, because the usual one, which forks for each job, is slower.
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
PEERS = {  # By their names and by when Redis calls fsync: how many jobs.
    ("celery", "always"): 1_500,
    ("celery", "everysec"): 6_000,
    ("rq", "always"): 200,
    ("rq", "everysec"): 1_500,
}
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
    for (name, fsync), some in PEERS.items():
        progress.update(task, description=f"{name} on Redis, appendfsync {fsync}")
        if importable(name) and redis.find():
            with STARTED[name](scratch, fsync, some) as system:
                found |= measure(system)
                found |= ratios(found, system.name)
    progress.remove_task(task)
    return found


def ratios(found: Found, name: str) -> Found:
    figures = ("drain_per_second", "end_to_end_per_second")
    return {
        f"penstock_to_{name}_{figure}": found[f"penstock_{figure}"] / found[f"{name}_{figure}"] for figure in figures
    }


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
        producer = system.send()
        while not system.left():
            time.sleep(LOOK_SECONDS)
        begun = time.monotonic()
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
def redis_started(scratch: Path, fsync: str, *keys: tuple[str, str]) -> Iterator[tuple[str, Callable[[], int]]]:
    """The address of a Redis, and how many entries these lists and hashes of it have."""
    from redis import Redis

    with redis.started(Plan(0, 0, scratch), fsync) as port, Redis(HOST, port) as link:
        yield f"redis://{HOST}:{port}/0", lambda: sum(int(getattr(link, count)(key)) for count, key in keys)


@contextlib.contextmanager
def celery_started(scratch: Path, fsync: str, jobs: int) -> Iterator[System]:
    with redis_started(scratch, fsync, ("llen", "celery"), ("hlen", "unacked")) as (url, left):
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
        log = scratch / "penstock-bench-celery.log"
        yield System(f"celery_{fsync}", jobs, [*command, *options], producer, left, log, {"BENCH_REDIS": url})
        log.unlink()


@contextlib.contextmanager
def rq_started(scratch: Path, fsync: str, jobs: int) -> Iterator[System]:
    with redis_started(scratch, fsync, ("llen", "rq:queue:noop"), ("zcard", "rq:wip:noop")) as (url, left):
        command = [sys.executable, "-m", "rq.cli", "worker", "noop", "--url", url, "--quiet"]
        command += ["--worker-class", "rq.worker.SimpleWorker"]
        producer = [sys.executable, "-m", "bench.noop.rq_tasks"]
        log = scratch / "penstock-bench-rq.log"
        yield System(f"rq_{fsync}", jobs, command, producer, left, log, {"BENCH_REDIS": url})
        log.unlink()


STARTED = {"celery": celery_started, "rq": rq_started}
