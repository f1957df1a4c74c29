"""A task with a schedule runs by itself; the broker keeps the time."""

from __future__ import annotations

import threading

import pytest

from penstock.worker import App, TaskError
from tests.support.broker import Broker
from tests.support.working import url_of, working


def test_a_task_with_an_interval_runs_by_itself(broker: Broker) -> None:
    app = App(url_of(broker), name="recurring-interval")
    ran = threading.Event()

    @app.task(every=1)
    def tick() -> None:
        ran.set()

    with working(app):
        assert ran.wait(20)
    broker.request("DELETE", "/v1/schedules/recurring-interval.tick")


def test_a_schedule_that_was_paused_stays_paused_when_a_worker_starts(broker: Broker) -> None:
    app = App(url_of(broker), name="recurring-cron")
    path = "/v1/schedules/recurring-cron.report"

    @app.task(schedule="30 2 * * mon-fri", time_zone="Europe/Berlin", payload="msgpack")
    def report(kind: str = "sales") -> None: ...

    with working(app):
        made = broker.request("GET", path).json()
    assert (made["cron"], made["time_zone"], made["paused"]) == ("30 2 * * mon-fri", "Europe/Berlin", False)
    broker.request("PATCH", path, {"Content-Type": "application/json"}, b'{"paused": true}')
    with working(app):
        assert broker.request("GET", path).json()["paused"]


def test_a_task_has_either_a_calendar_or_an_interval() -> None:
    with pytest.raises(TaskError, match="use either schedule or every"):
        App().task(schedule="* * * * *", every=1)(lambda: None)
