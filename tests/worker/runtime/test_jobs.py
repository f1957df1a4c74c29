"""How many jobs a worker holds: enough to be busy, and no long ones that others could run."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import accumulate

from penstock.worker import App, current_job
from tests.support.broker import Broker
from tests.support.working import url_of, working


def leased_at_most(broker: Broker, queue: str) -> int:
    """How many messages of the queue were leased at the same time."""
    lines = broker.request("GET", f"/v1/events?queue={queue}&state=FX&bodies=false").body.splitlines()
    return max(accumulate(1 if json.loads(line)["state"] == "F" else -1 for line in lines))


def test_a_worker_takes_no_more_long_jobs_than_it_has_slots_for(broker: Broker) -> None:
    app = App(url_of(broker), name="jobs-long")

    @app.task
    def long() -> None:
        time.sleep(0.6)

    with working(app, concurrency=2):
        for job in long.send_many([()] * 8):
            job.result(60)
    assert leased_at_most(broker, app.name) <= 4  # Two that run, and two whose confirmations are under way.


def test_a_worker_fetches_many_short_jobs_at_once(broker: Broker) -> None:
    app = App(url_of(broker), name="jobs-short")

    @app.task
    async def short() -> None: ...

    short.send_many([()] * 3000)
    app.close()
    before = requests(broker)
    asyncio.run(app.worker(concurrency=2, burst=True).serve())
    status = broker.request("GET", f"/v1/queues/{app.name}").json()["status"]
    assert (status["messages"], status["last_sequence"]) == (0, 3000)
    assert requests(broker) - before < 300  # Fetches and confirmations: more than ten jobs each.


def requests(broker: Broker) -> int:
    """Requests that the broker has answered so far, of whatever kind."""
    text = broker.request("GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("penstock_http_responses_total")]
    return int(sum(float(line.rpartition(" ")[2]) for line in lines))


def test_what_a_job_publishes_names_it_as_its_cause_in_threads_and_on_the_loop_and_along_a_chain(
    broker: Broker,
) -> None:
    app = App(url_of(broker), name="jobs-causes")

    @app.task
    def plain(name: str) -> str:
        return current_job().id if name == "leaf" else plain.send("leaf").id

    @app.task
    async def coroutine(name: str) -> str:
        return (await coroutine.a.send("leaf")).id if name == "root" else current_job().id

    with working(app):
        for task in (plain, coroutine):
            root = task.send("root")
            leaf = root.result(60)
            assert cause_of(broker, leaf) == root.id
            assert cause_of(broker, root.id) is None
        first = plain.then(coroutine).send("leaf")
        first.result(60)
        followed = broker.request("GET", f"/v1/events?caused_by={first.id}&state=L").body.splitlines()
        assert [json.loads(line)["queue"] for line in followed] == [app.name]
    app.close()


def cause_of(broker: Broker, message: str) -> str | None:
    document = broker.request("GET", f"/v1/messages/{message}").json()
    cause: str | None = document.get("headers", {}).get("caused-by")
    return cause
