"""Whatever a function does, its job ends with a reason, and the worker lives."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from penstock import MessageFailed
from penstock.worker import Handle
from tests.support.broker import Broker
from tests.support.misbehaving import LOOP_WAYS, PROCESS_WAYS, SUCCEEDS, WAYS, make
from tests.support.waiting import wait_until
from tests.support.working import WorkerProcess, url_of

ROOT = Path(__file__).parents[3]
JSON = {"Content-Type": "application/json"}
# Bodies, and what must be in the reason.
MESSAGES = {
    "nothing": (b"", "this is no job"),
    "no JSON": (b"not json", "this is no job"),
    "no UTF-8": (b'{"task": "\xff"}', "this is no job"),
    "a number": (b"17", "this is no job"),
    "null": (b"null", "this is no job"),
    "no task": (b"{}", "this is no job"),
    "a task that is no text": (b'{"task": 17}', "this is no job"),
    "a deep message": (b"[" * 100_000, "this is no job"),
    "a deep argument": (b'{"task": "well", "args": {"number": ' + b"[" * 100_000, "this is no job"),
    "an unknown task": (b'{"task": "who"}', "this worker has no task called who"),
    "a task with surrogates": (b'{"task": "\\ud800"}', "this is no job"),
    "no arguments": (b'{"task": "well"}', "do not fit: Object missing required field `number`"),
    "arguments that are null": (b'{"task": "well", "args": null}', "do not fit"),
    "arguments in a list": (b'{"task": "well", "args": [1]}', "do not fit"),
    "an argument too many": (b'{"task": "well", "args": {"number": 1, "more": 2}}', "do not fit"),
    "an argument of another type": (
        b'{"task": "well", "args": {"number": "1"}}',
        "do not fit: Expected `int`, got `str`",
    ),
    "an argument that is too long": (
        b'{"task": "well", "args": {"number": %b}}' % (b"9" * 6000),
        "Integer value out of range",
    ),
    "a chain that is none": (b'{"task": "well", "args": {"number": 1}, "then": 17}', "this is no job"),
    "a chain to no queue": (
        b'{"task": "well", "args": {"number": 1}, "then": [{"task": "x", "queue": "", "into": "y"}]}',
        "the next task, x, cannot be published",
    ),
}


class Stage:
    """A worker with its app, and the jobs that it has to do."""

    def __init__(self, broker: Broker, directory: Path, name: str, *options: str) -> None:
        directory.mkdir()
        (directory / "tasks.py").write_text(f"from tests.support.misbehaving import make\napp = make({name!r})\n")
        self.app = make(name)
        self.app.connect_to(url_of(broker), None)
        environment = {"PYTHONPATH": str(ROOT)}
        self.worker = WorkerProcess(directory, url_of(broker), *options, environment=environment)
        self.jobs: dict[str, Handle] = {}

    def send(self, task: str, ways: Collection[str]) -> None:
        handles = self.app.tasks[task].send_many([(way,) for way in ways])
        self.jobs |= dict(zip([f"{task} {way}" for way in ways], handles, strict=True))

    def close(self) -> None:
        self.app.close()
        if self.worker.process.poll() is None:
            self.worker.kill()


@pytest.fixture(scope="module")
def threads(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(broker, tmp_path_factory.mktemp("misbehaving") / "threads", "misbehaving-threads")
    stage.send("plain", WAYS)
    stage.send("asynchronous", WAYS | LOOP_WAYS)
    yield stage
    stage.close()


@pytest.fixture(scope="module")
def processes(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("misbehaving") / "processes"
    stage = Stage(broker, directory, "misbehaving-processes", "--processes", "2", "--concurrency", "4")
    stage.send("plain", WAYS | PROCESS_WAYS)
    yield stage
    stage.close()


def check(stage: Stage, broker: Broker, job: str, reason: str) -> None:
    handle = stage.jobs[job]
    if reason == SUCCEEDS:
        handle.result(60)
        return
    with pytest.raises(MessageFailed) as caught:
        handle.result(60)
    assert shown(reason) in shown(str(caught.value))
    assert shown(reason) in shown(reason_of(broker, handle.id))


def shown(text: str) -> str:
    return "".join(each for each in text if each.isprintable())


def reason_of(broker: Broker, job: str) -> str:
    """Why the last delivery of a message ended, as the Event Log keeps it."""
    document = broker.request("GET", f"/v1/messages/{job}").json()
    return str(document["consumed"][-1].get("reason", ""))


@pytest.mark.parametrize("way", WAYS)
def test_a_function_in_a_thread(threads: Stage, broker: Broker, way: str) -> None:
    check(threads, broker, f"plain {way}", WAYS[way][1])


@pytest.mark.parametrize("way", WAYS | LOOP_WAYS)
def test_a_function_on_the_event_loop(threads: Stage, broker: Broker, way: str) -> None:
    check(threads, broker, f"asynchronous {way}", (WAYS | LOOP_WAYS)[way][1])


@pytest.mark.parametrize("way", WAYS | PROCESS_WAYS)
def test_a_function_in_a_child_process(processes: Stage, broker: Broker, way: str) -> None:
    check(processes, broker, f"plain {way}", (WAYS | PROCESS_WAYS)[way][1])


@pytest.mark.parametrize("form", ["threads", "processes"])
def test_messages_that_are_no_jobs(request: pytest.FixtureRequest, broker: Broker, form: str) -> None:
    stage: Stage = request.getfixturevalue(form)
    stage.app.tasks["well"].send(1).result(60)
    ids = {}
    for name, (body, _) in MESSAGES.items():
        answer = broker.request("POST", f"/v1/queues/{stage.app.name}/messages?priority=1", JSON, body)
        ids[name] = answer.json()["id"]
    for name, (_, reason) in MESSAGES.items():
        wait_until(lambda name=name: has_failed(broker, ids[name]), name)  # type: ignore[misc]
        assert reason in reason_of(broker, ids[name]), name


def has_failed(broker: Broker, job: str) -> bool:
    document = broker.request("GET", f"/v1/messages/{job}").json()
    return any(each["state"] == "E" for each in document["consumed"])


@pytest.mark.parametrize("form", ["threads", "processes"])
def test_after_all_that_the_worker_works_and_stops_in_time(request: pytest.FixtureRequest, form: str) -> None:
    stage: Stage = request.getfixturevalue(form)
    assert stage.app.tasks["well"].send(1).result(60) == 2
    assert stage.worker.stop() == 0
    assert stage.worker.logged("error in the worker") == []
    assert stage.worker.logged("loop of the worker ended") == []
    assert stage.worker.logged("job left to its lease") == []
    assert stage.worker.logged("stopped")


@pytest.fixture
def stage(broker: Broker, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(broker, tmp_path / "stage", tmp_path.name, "--grace", "0.5")
    yield stage
    stage.close()


def test_functions_that_nothing_ends_do_not_keep_the_worker(stage: Stage, broker: Broker) -> None:
    jobs = [stage.app.tasks[task].send() for task in ("sleeps", "insists", "swallows")]
    for job in jobs:
        wait_until(lambda job=job: job.status() == "running", "it has begun")  # type: ignore[misc]
    assert stage.worker.stop() == 0
    assert len(stage.worker.logged("functions do not end")[0]["jobs"]) == 3
    assert [reason_of(broker, job.id) for job in jobs] == ["the worker stops, and the function does not end"] * 3


def test_a_function_that_blocks_the_event_loop_for_longer_than_its_lease_runs_once(stage: Stage) -> None:
    job = stage.app.tasks["blocks"].send(4)
    assert job.result(60) == 1
    assert (
        "in blocks"
        in stage.worker.wait_until_logged("the event loop is blocked by a function that is async")["at"][-1]
    )
    assert stage.worker.wait_until_logged("the event loop runs again")["seconds"] >= 2
    assert stage.worker.stop() == 0
    assert stage.worker.logged("job lost") == []


def test_a_worker_whose_event_loop_is_blocked_for_good_ends_all_the_same(stage: Stage) -> None:
    stage.app.tasks["blocks"].send(3600)
    stage.worker.wait_until_logged("the event loop is blocked by a function that is async")
    assert stage.worker.stop() == 0
    assert "blocks" in stage.worker.logged("the event loop is blocked; exiting")[0]["at"][-1]
