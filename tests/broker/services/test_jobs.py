"""Jobs: how they end, who waits for them, and how many there may be."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.services import jobs as module
from penstock.broker.services.jobs import Job, Jobs
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.search import Searches
from penstock.broker.turns import Turns
from penstock.dialects.wire.http import Request
from penstock.errors import DamagedLogError, Fault, PenstockError, RequestError
from penstock.limits import JOBS_MAX, JOBS_REMEMBERED_MAX
from penstock.model.jobs import EndJob, FindJob, ListJobs, NoJob
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop

WHOEVER = Request(b"GET", b"/", {})


class Steps:
    """Works until it is told to end, or to fail."""

    queue = "work"

    def __init__(self) -> None:
        self.logged: list[str] = []
        self.end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self, job: Job) -> None:
        await self.end

    def progress(self) -> dict[str, Any]:
        return {"steps": 1}

    def ended(self, state: str) -> None:
        self.logged.append(state)


def some_jobs() -> Jobs:
    loop = a_loop(MemoryLog())
    return Jobs(Searches(loop, LogReads(loop), Turns()), "tests")


def test_a_short_job_is_over_when_its_request_is_answered() -> None:
    async def story() -> None:
        jobs, steps = some_jobs(), Steps()
        steps.end.set_result(None)
        job = await jobs.begin(steps)
        assert (job.state, job.failure, steps.logged) == ("done", None, ["done"])
        assert await jobs.find(WHOEVER, FindJob("purges", job.id)) == job.describe()

    asyncio.run(story())


def test_a_long_job_goes_on_after_the_answer_until_it_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        jobs, steps = some_jobs(), Steps()
        job = await jobs.begin(steps)
        assert job.state == "running"
        ended = await jobs.end(WHOEVER, EndJob("purges", job.id))
        assert ended == job.describe()
        assert job.state == "stopped"
        steps.end.set_result(None)
        await asyncio.sleep(0)
        assert (job.state, steps.logged) == ("stopped", ["stopped"]), "it ends once"
        assert await jobs.end(WHOEVER, EndJob("purges", "unknown")) == NoJob()
        await jobs.close()

    monkeypatch.setattr(module, "JOB_ANSWER_SECONDS", 0.001)
    asyncio.run(story())


@pytest.mark.parametrize("error", [RequestError(Fault.NO_CHANNEL, "c"), DamagedLogError("bytes are gone")])
def test_a_job_that_fails_keeps_its_error(error: PenstockError) -> None:
    async def story() -> None:
        steps = Steps()
        steps.end.set_exception(error)
        job = await some_jobs().begin(steps)
        assert (job.state, job.failure, steps.logged) == ("failed", error, ["failed"])

    asyncio.run(story())


def test_only_so_many_jobs_run_and_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        jobs = some_jobs()
        running = [Steps() for _ in range(JOBS_MAX)]
        for steps in running:
            jobs.check_room()
            await jobs.begin(steps)
        with pytest.raises(RequestError, match=f"{JOBS_MAX} tests"):
            jobs.check_room()
        for steps in running:
            steps.end.set_result(None)
        for _ in range(JOBS_REMEMBERED_MAX + 2):
            steps = Steps()
            steps.end.set_result(None)
            await jobs.begin(steps)
        assert len((await jobs.list(WHOEVER, ListJobs("purges"))).jobs) <= JOBS_REMEMBERED_MAX + 1
        await jobs.close()

    monkeypatch.setattr(module, "JOB_ANSWER_SECONDS", 0.001)
    asyncio.run(story())
