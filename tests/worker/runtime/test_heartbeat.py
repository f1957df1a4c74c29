"""A worker reports to the broker while it is there, and signs off when it stops."""

from __future__ import annotations

import secrets

import penstock
from penstock.client import Client
from tests.support.broker import Broker
from tests.support.waiting import wait_until
from tests.support.working import url_of, working


def test_a_worker_is_listed_while_it_works(broker: Broker) -> None:
    name = f"app-{secrets.token_hex(4)}"
    app = penstock.App(url_of(broker), name=name)

    @app.task
    def nothing() -> None: ...

    with Client(url_of(broker)) as client:

        def found() -> list[tuple[list[str], int, bool]]:
            return [
                (each.queues, each.concurrency, each.missing)
                for each in client.workers.list()
                if each.name.startswith(f"{name}@")
            ]

        with working(app, concurrency=7):
            wait_until(found, "the worker has reported")
            assert found() == [(app.queues, 7, False)]
            assert 'penstock_workers{state="working"}' in client.metrics()
        assert found() == []
