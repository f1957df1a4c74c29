"""Tasks are declared once, make their queues, and run in workers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from penstock.client.errors import MessageNotFound
from penstock.embedded import LocalBroker
from penstock.worker import App, MessageFailed, Reject, Retry, TaskError, current_job
from tests.support.broker import Broker
from tests.support.waiting import wait_until
from tests.support.working import url_of, working

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def app(broker: Broker, request: pytest.FixtureRequest) -> App:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:80]
    return App(url_of(broker), name=name)


def test_a_job_runs_in_a_worker_and_its_result_comes_back(app: App) -> None:
    @app.task
    def add(first: int, second: int = 2) -> int:
        return first + second

    with working(app):
        job = add.send(1)
        assert job.result(60) == 3
        assert job.status() == "done"
        assert add.delay(1, second=5).result(60) == 6
        assert add(1, 1) == 2


def test_async_functions_run_too_and_asyncio_may_send_them(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    async def main() -> list[int]:
        jobs = await double.a.send_many([(1,), {"number": 2}])
        results = [await job.result(60) for job in [*jobs, await double.a.send(3)]]
        await app.aclose()
        return results

    with working(app):
        assert asyncio.run(main()) == [2, 4, 6]


def test_payloads_may_be_msgpack(app: App, broker: Broker) -> None:
    @app.task(payload="msgpack")
    def size(data: bytes) -> int:
        return len(data)

    with working(app):
        job = size.send(b"\x00\xff")
        assert job.result(60) == 2
    assert broker.request("GET", f"/v1/messages/{job.id}").json()["mimeType"] == "application/msgpack"


def test_a_job_that_fails_is_tried_again_after_the_delay_of_its_queue(app: App) -> None:
    begun: list[float] = []

    @app.task(max_attempts=3, retry_delay=0.2, retry_jitter=0.0)
    def flaky() -> int:
        begun.append(time.monotonic())
        if current_job().attempt < 3:
            raise ValueError("not yet")
        return current_job().attempt

    with working(app):
        assert flaky.send().result(60) == 3
    pauses = [after - before for before, after in pairwise(begun)]
    assert pauses[0] >= 0.19
    assert pauses[1] >= 0.39


def test_a_job_fails_for_good_after_its_last_attempt_and_says_why(app: App) -> None:
    @app.task(max_attempts=2, retry_delay=0.01)
    def broken() -> None:
        raise ValueError("always")

    with working(app):
        job = broken.send()
        with pytest.raises(MessageFailed, match="has failed: ValueError: always"):
            job.result(60)
        assert job.status() == "failed"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()], ids=repr)
def test_whatever_a_task_raises_the_worker_goes_on(app: App, error: BaseException) -> None:
    @app.task(max_attempts=1)
    async def leave() -> None:
        raise error

    @app.task
    def leave_a_thread() -> None:
        raise error

    with working(app):
        for task in (leave, leave_a_thread):
            with pytest.raises(MessageFailed, match=type(error).__name__):
                task.send().result(60)


def test_reject_and_no_retry_end_a_job_at_the_first_attempt(app: App) -> None:
    attempts: list[str] = []

    @app.task(no_retry=[KeyError])
    def refuse(how: str) -> None:
        attempts.append(how)
        raise KeyError(how) if how == "key" else Reject(how)

    with working(app):
        for how in ("key", "reject"):
            with pytest.raises(MessageFailed, match=how):
                refuse.send(how).result(60)
    assert attempts == ["key", "reject"]


def test_retry_asks_for_another_attempt_after_a_delay_of_its_own(app: App) -> None:
    @app.task(retry_delay=3000)
    def later() -> int:
        if current_job().attempt == 1:
            raise Retry(delay=0.05)
        return current_job().attempt

    with working(app):
        assert later.send().result(60) == 2


def test_a_dead_letter_queue_keeps_jobs_that_failed(app: App, broker: Broker) -> None:
    failed = f"{app.name}-failed"

    @app.task(max_attempts=2, retry_delay=0.01, dead_letter_queue=failed)
    def broken(attempts: int) -> int:
        if current_job().attempt <= attempts:
            raise ValueError("no")
        return attempts

    with working(app):
        assert broken.send(1).result(60) == 1  # In the last attempt.
        with pytest.raises(MessageFailed):
            broken.send(9).result(60)
    (letter,) = broker.request("GET", f"/v1/search?queue={failed}").json()["messages"]
    assert letter["reason"] == "ValueError: no"


def test_a_chain_hands_each_result_to_the_next_task(app: App) -> None:
    seen: list[str] = []

    @app.task
    def fetch(name: str) -> bytes:
        return name.encode()

    @app.task(payload="msgpack")
    def repeat(data: bytes, times: int) -> list[bytes]:
        return [data] * times

    @app.task(queue=f"{app.name}-other")
    async def store(parts: list[bytes]) -> None:
        seen.append(b"".join(parts).decode())

    with working(app):
        fetch.then(repeat, 2).then(store).send("ab")
        wait_until(lambda: seen, "the end of the chain")
    assert seen == ["abab"]


def test_a_chain_whose_first_task_is_tried_again_goes_on_once(app: App, broker: Broker) -> None:
    """The next job is published before the first is confirmed. A second attempt in between must not double it."""
    seen: list[int] = []

    @app.task(lease=1, retry_delay=0)
    def first() -> int:
        return current_job().attempt

    @app.task(queue=f"{app.name}-second")
    def second(attempt: int) -> None:
        seen.append(attempt)

    message = first.then(second).send()
    app.broker.run(_take_and_continue(app, message.id))
    with working(app):
        message.result(60)
        wait_until(lambda: seen, "the second task")
    queue = broker.request("GET", f"/v1/queues/{app.name}-second").json()
    assert queue["status"]["last_sequence"] == 1


async def _take_and_continue(app: App, job: str) -> None:
    """What a worker does that dies before it confirms."""
    messages = await app.broker.client().receive(app.name, wait=5)
    assert [message.id for message in messages] == [job]
    await app.broker.declare(f"{app.name}-second")
    body = '{"task":"second","args":{"attempt":1}}'
    await app.broker.client().publish(
        f"{app.name}-second", body, content_type="application/json", idempotency_key=f"then {job}"
    )
    await messages[0].retry(0.001)


def test_a_delayed_job_waits_in_the_broker_and_can_be_cancelled(app: App) -> None:
    @app.task
    def later() -> None: ...

    with working(app):
        job = later.with_options(delay=3600).send()
        assert job.status() == "delayed"
        assert job.cancel()
        assert job.status() == "cancelled"
        assert not job.cancel()
        with pytest.raises(MessageFailed, match="was cancelled"):
            job.result(60)


def test_a_job_with_a_key_is_stored_once(app: App) -> None:
    @app.task
    def welcome(number: int) -> None: ...

    call = welcome.with_options(idempotency_key="customer-17 ☃")
    assert call.send(17).id == call.send(17).id
    app.close()


def test_a_queue_that_was_deleted_is_made_again_by_the_next_job(app: App, broker: Broker) -> None:
    @app.task(max_attempts=3)
    def nothing() -> None: ...

    for call in (nothing.with_options(), nothing.with_options(idempotency_key="17")):
        call.send()
        assert broker.request("DELETE", f"/v1/queues/{app.name}").status == 204
        call.with_options(idempotency_key="18" if call.idempotency_key else None).send()
        assert broker.request("GET", f"/v1/queues/{app.name}").json()["max_attempts"] == 3
    app.close()


def test_a_job_can_be_found_again_by_its_id(app: App) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    async def result(stored_id: str) -> int:
        found = int(await double.a.job(stored_id).result(60))
        await app.aclose()
        return found

    stored = double.send(21).id
    with working(app):
        assert double.job(stored).result(60) == 42
        assert asyncio.run(result(stored)) == 42
        with pytest.raises(MessageNotFound):
            double.job(str(UUID(int=0))).status()


def test_a_job_with_a_higher_priority_runs_first(app: App) -> None:
    order: list[str] = []

    @app.task
    def note(name: str) -> None:
        order.append(name)

    note.send("plain")
    last = note.with_options(priority=9).send("urgent")
    with working(app, concurrency=1):
        last.result(60)
        wait_until(lambda: len(order) == 2, "both jobs")
    assert order == ["urgent", "plain"]


def test_wrong_arguments_are_refused_where_they_are_given(app: App) -> None:
    @app.task
    def add(first: int) -> int:
        return first

    with pytest.raises(TypeError, match="task add: argument first: expected `int`, got `str`"):
        add.send("1")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="task add: missing a required argument: 'first'"):
        add.send()  # type: ignore[call-arg]


FINAL = {
    "raised": ('{"task":"fails","args":{"how":"raise"}}', "ValueError: raise"),
    "rejected": ('{"task":"fails","args":{"how":"reject"}}', "Reject: reject"),
    "no retry": ('{"task":"fails","args":{"how":"key"}}', "KeyError: 'key'"),
    "no job": ("not json", "this is no job: "),
    "arguments": (
        '{"task":"fails","args":{"how":17}}',
        "the arguments of fails do not fit: Expected `str`, got `int`",
    ),
    "result": ('{"task":"fails","args":{"how":"result"}}', "the result of fails cannot be stored as JSON: "),
}


@pytest.mark.parametrize("kind", FINAL)
def test_a_job_that_has_failed_for_good_is_kept_with_its_reason_its_kind_and_the_end_of_its_traceback(
    app: App, broker: Broker, kind: str
) -> None:
    @app.task(max_attempts=1, no_retry=[KeyError])
    def fails(how: str) -> object:
        if how == "result":
            return object()
        raise {"raise": ValueError, "reject": Reject, "key": KeyError}[how](how)

    body, reason = FINAL[kind]
    with working(app):
        job = broker.request("POST", f"/v1/queues/{app.name}/messages?priority=1", JSON, body.encode()).json()["id"]
        letter = wait_until(lambda: dead_letter(broker, f"{app.name}.failed", job), "it has failed")
    assert letter["reason"].startswith(reason)
    assert letter["origin"] == app.name
    kept = broker.request("GET", f"/v1/messages/{job}").json()["consumed"][-1]["reason"]
    assert f"kind: {kind}" in kept
    assert kept.endswith(f"{reason}\n") == (kind in ("raised", "no retry"))  # The end of the traceback.


def dead_letter(broker: Broker, queue: str, job: str) -> dict[str, Any] | None:
    answer = broker.request("GET", f"/v1/search?queue={queue}")
    letters: list[dict[str, Any]] = answer.json()["messages"] if answer.status == 200 else []
    return next((letter for letter in letters if letter["id"] == job), None)


def test_the_queue_for_failed_jobs_keeps_them_for_two_weeks(app: App, broker: Broker) -> None:
    app.task(lambda: None).send()
    app.close()
    assert broker.request("GET", f"/v1/queues/{app.name}.failed").json()["retention_timeout"] == 14 * 86_400


def test_a_queue_that_exists_is_not_given_a_queue_for_failed_jobs(
    app: App, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    assert broker.request("PUT", f"/v1/queues/{app.name}", JSON, b"{}").status == 201
    app.task(lambda: None).send()
    app.close()
    assert broker.request("GET", f"/v1/queues/{app.name}").json()["redrive_policy"] is None
    assert broker.request("GET", f"/v1/queues/{app.name}.failed").status == 404
    assert "redrive_policy" not in caplog.text


def test_jobs_that_have_failed_are_dropped_if_that_is_asked_for(app: App, broker: Broker) -> None:
    @app.task(max_attempts=1, dead_letter_queue=None)
    def fails() -> None:
        raise ValueError("no")

    with working(app), pytest.raises(MessageFailed, match="ValueError: no"):
        fails.send().result(60)
    assert broker.request("GET", f"/v1/queues/{app.name}.failed").status == 404
    assert broker.request("GET", f"/v1/queues/{app.name}").json()["status"]["messages"] == 0


def test_a_task_that_a_worker_does_not_know_is_left_for_one_that_does(app: App, broker: Broker) -> None:
    other = App(url_of(broker), name=app.name)

    @other.task(retry_delay=0.05, retry_jitter=0.0, max_attempts=101, retry_backoff="fixed")
    def newer() -> str:
        return "done"

    @app.task(retry_delay=0.05, retry_jitter=0.0, max_attempts=101, retry_backoff="fixed")
    def older() -> None: ...

    with working(app):
        job = newer.send()
        wait_until(lambda: broker.request("GET", f"/v1/messages/{job.id}").json()["consumed"], "the first attempt")
    with working(other):
        assert job.result(60) == "done"


def test_progress_is_published_and_can_be_asked_for(app: App) -> None:
    seen = threading.Event()

    @app.task
    def long() -> None:
        current_job().progress(0.5, "half")
        assert seen.wait(20)

    with working(app):
        job = long.send()
        wait_until(job.progress, "a report")
        report = job.progress()
        seen.set()
        job.result(60)
    assert report
    assert (report.done, report.text, report.attempt) == (0.5, "half", 1)


def test_hooks_run_around_every_job(app: App) -> None:
    seen: list[str] = []

    @app.on("start")
    async def start() -> None:
        seen.append("start")

    @app.on("stop")
    def stop() -> None:
        seen.append("stop")

    app.on("before")(lambda job: seen.append(f"before {job.task}"))
    app.on("after")(lambda job: seen.append(f"after {job.task}"))
    app.on("failure")(lambda job, error: seen.append(f"failed {job.task}: {error}"))

    @app.task
    def good() -> None:
        seen.append("good")

    @app.task(no_retry=[ValueError])
    def bad() -> None:
        raise ValueError("no")

    with working(app):
        good.send().result(60)
        with pytest.raises(MessageFailed):
            bad.send().result(60)
    expected = ["start", "before good", "good", "after good", "before bad", "failed bad: ValueError: no", "stop"]
    assert seen == expected


def test_a_queue_that_exists_with_other_settings_is_reported(
    app: App, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.create_queue(app.name, visibility_timeout=7)

    @app.task
    def nothing() -> None: ...

    with caplog.at_level(logging.WARNING, "penstock.worker"):
        nothing.send()
    app.close()
    assert f"queue {app.name} exists with other settings" in caplog.text
    assert "lease is 7.0, the app wants 30.0" in caplog.text


def test_two_tasks_with_one_name_and_unknown_options_are_refused(app: App) -> None:
    @app.task
    def once() -> None: ...

    with pytest.raises(TaskError, match="two tasks are called once"):
        app.task(name="once")(lambda: None)
    with pytest.raises(TaskError, match="unknown options: retry"):
        app.task(name="other", retry=5)(lambda: None)  # type: ignore[call-overload]


def test_an_app_can_use_another_broker_in_each_test(penstock_broker: LocalBroker) -> None:
    app = App("http://127.0.0.1:1")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    app.connect_to(penstock_broker.url)
    job = double.send(21)
    app.worker(burst=True).run()
    assert job.result(60) == 42
    app.close()


FORKING = """
import os, sys, penstock
app = penstock.App(sys.argv[1], name="forked-app")

@app.task
def nothing() -> None: ...

nothing.send()
child = os.fork()
nothing.send()
if child:
    assert os.waitpid(child, 0)[1] == 0
os._exit(0)
"""


def test_a_server_that_forks_after_sending_can_send_in_every_child(broker: Broker) -> None:
    ended = subprocess.run([sys.executable, "-c", FORKING, url_of(broker)], timeout=60, check=False)
    assert ended.returncode == 0
    assert broker.request("GET", "/v1/queues/forked-app").json()["status"]["messages"] == 3


def test_there_is_no_current_job_outside_of_a_worker() -> None:
    with pytest.raises(RuntimeError, match="no job is running here"):
        current_job()
