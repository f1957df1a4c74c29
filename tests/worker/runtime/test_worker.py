"""A worker as a process: it drains at SIGTERM, comes back after a disconnect, and keeps its leases."""

from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.worker import MessageFailed
from tests.support.broker import Broker, StartBroker
from tests.support.ports import free_port
from tests.support.waiting import wait_until
from tests.support.working import WorkerProcess, url_of

TASKS = """
import asyncio, os, pathlib, time
import penstock

app = penstock.App(name=os.environ["QUEUE"])
here = pathlib.Path(__file__).parent

def note(text):
    with (here / "notes").open("a") as file:
        file.write(text + "\\n")

@app.task(lease=float(os.environ.get("LEASE", "5")), retry_delay=0.05, retry_backoff="fixed")
def hold(name: str, seconds: float = 60) -> str:
    note(f"begun {name}")
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (here / "go").exists():
        time.sleep(0.01)
    note(f"done {name}")
    return name

@app.task
async def hold_async(name: str) -> str:
    note(f"begun {name}")
    try:
        while not (here / "go").exists():
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        note(f"cancelled {name}")
        raise
    note(f"done {name}")
    return name

@app.task
def crash(name: str) -> str:
    note(f"begun {name}")
    if penstock.current_job().attempt == 1:
        os.kill(os.getpid(), 9)
    return name

@app.task
def deaf(name: str) -> None:
    note(f"begun {name}")
    time.sleep(3600)  # No exception reaches it: this is no Python code.

@app.task(queue=app.name + "-once", lease=3, max_attempts=1)
def once(number: int) -> int:
    note(f"begun {number}")
    time.sleep(0.005)
    return number

@app.task
def process() -> int:
    return os.getpid()

@app.task(queue=app.name + "-slow", timeout=0.3, max_attempts=1)
def slow(how: str) -> None:
    while True:
        time.sleep(0.01)
"""


class Stage:
    """A directory with tasks, the module that sends them, and the workers that were started."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory, self.url = directory, url
        (directory / "tasks.py").write_text(TASKS)
        specification = importlib.util.spec_from_file_location("tasks", directory / "tasks.py")
        assert specification
        assert specification.loader
        self.tasks: Any = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(self.tasks)
        self.tasks.app.connect_to(url, None)
        self.workers: list[WorkerProcess] = []

    def work(self, *options: str) -> WorkerProcess:
        worker = WorkerProcess(self.directory, self.url, *options)
        self.workers.append(worker)
        worker.wait_until_logged("ready")
        return worker

    def wait_for(self, *notes: str) -> None:
        wait_until(lambda: set(notes) <= set(self.notes()), f"{notes} in {self.notes()}")

    def notes(self) -> list[str]:
        path = self.directory / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def go(self) -> None:
        (self.directory / "go").touch()

    def close(self) -> None:
        self.tasks.app.close()
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()


@pytest.fixture
def stage(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("QUEUE", tmp_path.name)
    stage = Stage(tmp_path, url_of(broker))
    yield stage
    stage.close()


def status(broker: Broker, queue: str) -> dict[str, int]:
    found: dict[str, int] = broker.request("GET", f"/v1/queues/{queue}").json()["status"]
    return found


def test_what_a_worker_gives_back_when_it_stops_has_lost_no_attempt(stage: Stage, broker: Broker) -> None:
    worker = stage.work("--concurrency", "1")
    jobs = stage.tasks.once.send_many([(number,) for number in range(200)])
    stage.wait_for("begun 20")
    assert worker.stop() == 0
    assert worker.logged("draining")[0]["given_back"] > 0
    stage.work()
    assert [job.result(60) for job in jobs] == list(range(200))


def test_sigterm_lets_running_jobs_end_and_gives_the_others_back(stage: Stage, broker: Broker) -> None:
    worker = stage.work("--concurrency", "1")
    for quick in stage.tasks.process.send_many([()] * 50):  # So that it fetches ahead.
        quick.result(60)
    jobs = stage.tasks.hold.send_many([("a",), ("b",), ("c",)])
    stage.wait_for("begun a")
    wait_until(lambda: status(broker, stage.tasks.app.name)["leased"] == 3, "all are fetched")
    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait_until_logged("draining")["given_back"] == 2
    wait_until(lambda: status(broker, stage.tasks.app.name)["ready"] == 2, "both are ready again")
    stage.go()
    assert worker.ended() == 0
    assert stage.notes() == ["begun a", "done a"]
    assert jobs[0].result(60) == "a"
    stage.work("--concurrency", "2")
    assert [job.result(60) for job in jobs] == ["a", "b", "c"]
    assert sorted(stage.notes()) == ["begun a", "begun b", "begun c", "done a", "done b", "done c"]


def test_after_the_grace_time_running_jobs_are_stopped_and_given_back(stage: Stage) -> None:
    job = stage.tasks.hold_async.send("a")
    other = stage.tasks.hold.send("b")
    worker = stage.work("--grace", "0.2")
    stage.wait_for("begun a", "begun b")
    assert worker.stop(signal.SIGINT) == 0
    stage.go()
    stage.work()
    assert (job.result(60), other.result(60)) == ("a", "b")
    assert "cancelled a" in stage.notes()
    assert stage.notes().count("begun b") == 2


def test_a_function_that_cannot_be_interrupted_does_not_keep_the_worker(stage: Stage) -> None:
    stage.tasks.deaf.send("a")
    worker = stage.work("--grace", "0.2")
    stage.wait_for("begun a")
    assert worker.stop() == 0


def test_a_second_signal_ends_the_worker_at_once(stage: Stage) -> None:
    stage.tasks.hold.send("a")
    worker = stage.work()
    stage.wait_for("begun a")
    worker.process.send_signal(signal.SIGTERM)
    worker.wait_until_logged("draining")
    assert worker.stop() == 128 + signal.SIGTERM


def test_the_lease_of_a_long_job_is_extended(stage: Stage) -> None:
    job = stage.tasks.hold.send("a", 12)
    stage.work()
    stage.work()
    assert job.result(60) == "a"
    assert stage.notes() == ["begun a", "done a"]


def test_the_job_of_a_worker_that_was_killed_is_run_by_another(stage: Stage) -> None:
    job = stage.tasks.hold.send("a")
    worker = stage.work()
    stage.wait_for("begun a")
    worker.kill()
    stage.go()
    stage.work()
    assert job.result(60) == "a"
    assert stage.notes() == ["begun a", "begun a", "done a"]


def test_a_worker_that_is_killed_costs_only_those_jobs_an_attempt_that_had_begun(
    stage: Stage, broker: Broker
) -> None:
    """Each job has one attempt. The worker is killed four times, with many that it has fetched ahead."""
    jobs = stage.tasks.once.send_many([(number,) for number in range(400)])
    for part in range(1, 5):
        worker = stage.work("--concurrency", "4")
        wait_until(lambda part=part: len(stage.notes()) >= 80 * part, "some have begun")  # type: ignore[misc]
        worker.kill()
    stage.work()
    failed = set()
    for number, job in enumerate(jobs):
        try:
            assert job.result(60) == number
        except MessageFailed:
            failed.add(f"begun {number}")
    begun = stage.notes()
    assert len(failed) <= 4 * 4  # Those that a worker had begun when it was killed.
    assert len(begun) == len(set(begun))
    assert {f"begun {number}" for number in range(400)} == {*begun} | failed
    assert status(broker, stage.tasks.once.queue)["messages"] == 0


def test_a_worker_goes_on_after_the_broker_was_killed(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUE", "jobs")
    monkeypatch.setenv("LEASE", "30")  # Longer than the broker takes to come back.
    port = free_port()
    broker = start_broker(http=f"127.0.0.1:{port}")
    stage = Stage(tmp_path, url_of(broker))
    worker = stage.work()
    running = stage.tasks.hold.send("during")
    stage.wait_for("begun during")
    broker.kill()
    stage.go()
    stage.wait_for("done during")
    broker.start()
    assert running.result(60) == "during"
    assert stage.tasks.hold.send("after").result(60) == "after"
    assert worker.stop() == 0
    assert stage.notes() == ["begun during", "done during", "begun after", "done after"]
    stage.close()


def test_a_job_whose_lease_is_lost_is_cancelled_and_its_result_discarded(stage: Stage, broker: Broker) -> None:
    job = stage.tasks.hold_async.send("a")
    worker = stage.work()
    stage.wait_for("begun a")
    given_back = {"id": job.id, "outcome": "retry", "delay": 3600}
    answer = broker.request(
        "POST", "/v1/confirm", {"Content-Type": "application/json"}, json.dumps(given_back).encode()
    )
    assert answer.status == 200
    worker.wait_until_logged("job lost")
    stage.wait_for("cancelled a")
    assert worker.stop() == 0
    assert job.status() == "delayed"


def test_functions_run_in_child_processes_and_a_crash_fails_only_its_job(stage: Stage) -> None:
    worker = stage.work("--processes", "2")
    held = stage.tasks.hold.send("a")
    stage.wait_for("begun a")
    assert stage.tasks.crash.send("b").result(60) == "b"
    assert stage.tasks.process.send().result(60) != worker.process.pid
    stage.go()
    assert held.result(60) == "a"
    assert stage.notes().count("begun a") == 1
    assert "SIGKILL" in worker.logged("job failed")[0]["error"]
    assert worker.stop() == 0


@pytest.mark.parametrize("options", [[], ["--processes", "1"]], ids=["threads", "processes"])
def test_a_function_that_takes_too_long_is_stopped(stage: Stage, options: list[str]) -> None:
    worker = stage.work(*options)
    job = stage.tasks.slow.send("x")
    with pytest.raises(MessageFailed, match=r"TimeLimit: slow took longer than its timeout of 0\.3 s"):
        job.result(60)
    assert stage.tasks.process.send().result(60)
    assert worker.stop() == 0


def test_a_burst_ends_when_the_queues_are_empty(stage: Stage, broker: Broker) -> None:
    jobs = stage.tasks.process.send_many([()] * 2500)
    worker = WorkerProcess(stage.directory, stage.url, "--burst", "--log-level", "warning")
    assert worker.ended() == 0
    assert status(broker, stage.tasks.app.name)["messages"] == 0
    assert {job.result(60) for job in jobs[::500]} == {worker.process.pid}


@pytest.mark.parametrize("options", [[], ["--processes", "1"]], ids=["threads", "processes"])
def test_every_line_of_a_job_has_its_id(stage: Stage, options: list[str]) -> None:
    (stage.directory / "tasks.py").write_text(TASKS + CHATTY)
    worker = stage.work(*options)
    chatty = stage.tasks.app.task(name="chatty")(lambda: None)
    job = chatty.send()
    line = worker.wait_until_logged("in the task")
    assert (line["job"], line["task"]) == (job.id, "chatty")
    assert worker.wait_until_logged("job done")["job"] == job.id


def test_a_worker_starts_again_when_a_file_changes(stage: Stage) -> None:
    worker = stage.work("--reload")
    (stage.directory / "tasks.py").write_text(TASKS + CHATTY)
    worker.wait_until_logged("stopped")
    worker.wait_until_logged("ready")
    stage.tasks.app.task(name="chatty")(lambda: None).send()
    worker.wait_until_logged("in the task")
    assert worker.stop() == 0


CHATTY = """
import logging

@app.task
def chatty() -> None:
    logging.getLogger("shop").warning("in the task")
"""
