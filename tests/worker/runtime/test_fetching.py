"""A worker is never silently stuck: it reports that it cannot fetch, and goes on when it can."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from penstock.worker import App
from tests.support.broker import Broker, StartBroker
from tests.support.waiting import wait_until
from tests.support.working import url_of, working


def test_a_fetch_that_hangs_is_given_up_and_made_again(
    start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker = start_broker()
    app = App(url_of(broker))

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with caplog.at_level(logging.INFO, "penstock.worker"), working(app):
        assert double.send(1).result(60) == 2
        os.kill(broker.pid, signal.SIGSTOP)  # Connections stay open, and nobody answers.
        try:
            wait_until(lambda: "cannot fetch jobs" in caplog.text, "the worker notices")
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert double.send(2).result(60) == 4
        wait_until(lambda: "connected again" in caplog.text, "the worker reports that it works again")
    assert caplog.text.count("cannot fetch jobs") == 1


def test_a_queue_that_was_deleted_is_made_again(broker: Broker) -> None:
    app = App(url_of(broker), name="fetching-deleted")

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with working(app):
        assert double.send(1).result(60) == 2
        broker.request("DELETE", "/v1/queues/fetching-deleted")
        wait_until(lambda: broker.request("GET", "/v1/queues/fetching-deleted").status == 200, "the queue is back")
        assert double.send(2).result(60) == 4
