"""Workers and the broker die again and again, and every job is done; only jobs of a worker that was killed run twice.

A producer sends jobs all the time. Each job writes a line when it begins and one when it ends, to a file that
outlives its worker. The broker is stopped, or killed, and started again on the same data, and so are two workers.

    TORTURE=long      20 restarts of the broker and 20 kills in five minutes, instead of 2 and 3
    TORTURE_SEED=n    the choices of an earlier run
"""

from __future__ import annotations

import os
import random
import secrets
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from penstock.worker import App
from tests.support.broker import Broker
from tests.support.ports import free_port
from tests.support.working import WorkerProcess, url_of

LONG = os.environ.get("TORTURE") == "long"
# How often each of these happens.
BLOWS = Counter(
    {"stop broker": 20, "kill broker": 10, "kill worker": 10, "stop worker": 5}
    if LONG
    else {"stop broker": 2, "kill broker": 1, "kill worker": 2, "stop worker": 1}
)
SECONDS = 240.0 if LONG else 15.0  # For all of them.
DRAIN_SECONDS_MAX = 120.0
LEASE_SECONDS = 30.0  # Longer than a broker takes to come back.
SENT_TOGETHER = 20
SEND_SECONDS = 0.1

TASKS = f"""
import asyncio, os, time
import penstock

app = penstock.App(name="torture")
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(what, name):
    os.write(ledger, f"{{what}} {{name}} {{os.getpid()}}\\n".encode())

@app.task(lease={LEASE_SECONDS}, max_attempts=None, retry_delay=0)
def work(name: str, seconds: float) -> str:
    note("begun", name)
    time.sleep(seconds)
    note("done", name)
    return name

@app.task
async def work_async(name: str, seconds: float) -> str:
    note("begun", name)
    await asyncio.sleep(seconds)
    note("done", name)
    return name
"""


class Producer(threading.Thread):
    """Sends jobs until it is stopped, whether or not there is a broker at the moment."""

    def __init__(self, url: str, chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.app = App(url, name="torture")
        options: dict[str, Any] = {"lease": LEASE_SECONDS, "max_attempts": None, "retry_delay": 0}
        self.tasks = [self.app.task(name=name, **options)(_declared) for name in ("work", "work_async")]
        self.chance = chance
        self.sent: list[str] = []
        self.over = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.over.wait(SEND_SECONDS):
                names = [f"job-{len(self.sent) + number}" for number in range(SENT_TOGETHER)]
                task = self.chance.choice(self.tasks)
                task.send_many([(name, self.chance.choice((0.0, 0.001, 0.02, 0.3))) for name in names])
                self.sent += names
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self.over.set()
        self.join()
        self.app.close()
        assert self.error is None, self.error


def _declared(name: str, seconds: float) -> str:
    return f"{name} {seconds}"


class Ledger:
    """What workers have written down."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pids(self, what: str) -> dict[str, list[int]]:
        """The workers that have begun or done each job."""
        found: dict[str, list[int]] = defaultdict(list)
        for line in self.path.read_text().splitlines():
            word, name, pid = line.split()
            if word == what:
                found[name].append(int(pid))
        return found


class Workers:
    """Two workers, one of which lives at any time."""

    def __init__(self, directory: Path, url: str) -> None:
        (directory / "tasks.py").write_text(TASKS)
        self.directory, self.url = directory, url
        self.killed: set[int] = set()
        self.alive = [self._start(), self._start()]

    def _start(self) -> WorkerProcess:
        worker = WorkerProcess(self.directory, self.url)
        worker.wait_until_logged("ready")
        return worker

    def kill(self, which: int) -> None:
        self.killed.add(self.alive[which].process.pid)
        self.alive[which].kill()
        self.alive[which] = self._start()

    def stop(self, which: int) -> None:
        assert self.alive[which].stop() == 0, self.alive[which].log()
        self.alive[which] = self._start()

    def end(self) -> None:
        for worker in self.alive:
            assert worker.stop() == 0, worker.log()


@pytest.mark.torture
@pytest.mark.timeout(SECONDS + DRAIN_SECONDS_MAX + 120)
def test_every_job_is_done_and_only_jobs_of_killed_workers_run_twice(tmp_path: Path) -> None:
    seed = os.environ.get("TORTURE_SEED") or secrets.token_hex(4)
    print(f"TORTURE_SEED={seed}")
    chance = random.Random(seed)
    broker = Broker(tmp_path / "data", http=f"127.0.0.1:{free_port()}").start()
    producer = Producer(url_of(broker), chance)
    workers, ledger = Workers(tmp_path, url_of(broker)), Ledger(tmp_path / "ledger")
    producer.start()
    try:
        for blow in chance.sample(list(BLOWS.elements()), BLOWS.total()):
            _wait(SECONDS / BLOWS.total() * chance.uniform(0.5, 1.0))
            _strike(blow, broker, workers, chance.randrange(2))
        producer.finish()
        _wait_until_done(ledger, producer.sent)
        workers.end()
        _balance(ledger, producer.sent, workers.killed)
        assert broker.request("GET", "/v1/queues/torture").json()["status"]["messages"] == 0
    finally:
        for worker in workers.alive:
            worker.kill()
        if broker.running:
            broker.stop()


def _wait(seconds: float) -> None:
    """Let them work for a while: when a blow falls is part of the draw."""
    threading.Event().wait(seconds)


def _strike(blow: str, broker: Broker, workers: Workers, which: int) -> None:
    match blow:
        case "stop broker":
            broker.stop()
            broker.start()
        case "kill broker":
            broker.kill()
            broker.start()
        case "kill worker":
            workers.kill(which)
        case _:
            workers.stop(which)


def _wait_until_done(ledger: Ledger, sent: list[str]) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    while missing := set(sent) - ledger.pids("done").keys():
        assert time.monotonic() < deadline, (
            f"{len(missing)} of {len(sent)} jobs were never done: {sorted(missing)[:5]}"
        )
        _wait(0.1)


def _balance(ledger: Ledger, sent: list[str], killed: set[int]) -> None:
    begun = ledger.pids("begun")
    assert begun.keys() == set(sent), "a job ran that nobody has sent"
    again = {name: pids for name, pids in begun.items() if len(pids) > 1}
    print(f"{len(sent)} jobs, {len(again)} of them run more than once, {len(killed)} workers killed")
    unexplained = {name: pids for name, pids in again.items() if not set(pids[:-1]) <= killed}
    assert not unexplained, unexplained
