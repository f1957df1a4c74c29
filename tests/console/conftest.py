"""One browser, and one broker with traffic of every kind, for all tests of the console."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.support.broker import Broker
from tests.support.browser import started
from tests.support.small_lake import write_minutes


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """For this folder: playwright runs an event loop in this thread, and later tests run loops of their own."""
    with started() as browser:
        yield browser


def call(broker: Broker, method: str, path: str, document: Any = None) -> Any:
    body = None if document is None else json.dumps(document).encode()
    answer = broker.request(method, path, body=body)
    assert answer.status < 300, answer
    return answer.json() if answer.body else None


@pytest.fixture(scope="package")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Orders that are consumed, some that have failed, delayed reports, a channel, schedules and versions."""
    lake, minute = tmp_path_factory.mktemp("tables") / "lake", int(time.time()) // 60 * 60
    write_minutes(lake, *[("orders", minute - 60 * ago, ago) for ago in range(90, 0, -1)])
    settings = ("push.private_addresses=allow", f"lake.directory={lake}")
    broker = Broker(tmp_path_factory.mktemp("shop"), *settings).start()
    call(broker, "PUT", "/v1/queues/orders.failed")
    policy = {"max_receives": 1, "dead_letter_queue": "orders.failed"}
    call(broker, "PUT", "/v1/queues/orders", {"lease": 60, "redrive_policy": policy})
    call(broker, "PUT", "/v1/queues/reports")
    call(broker, "PUT", "/v1/channels/mail", {"topics": ["customer.*"]})
    call(broker, "PUT", "/v1/channels/hook", {"topics": ["hooks.*"], "push": {"url": "http://127.0.0.1:9/x"}})
    call(broker, "PUT", "/v1/schedules/nightly", {"cron": "0 2 * * *", "queue": "reports", "message": "report"})
    for city in ("London", "Paris"):
        customer = {"topics": ["customer.changed"], "object": "customer", "key": "ada", "message": {"city": city}}
        call(broker, "POST", "/v1/publish", customer)
    call(broker, "POST", "/v1/queues/reports/messages", [{"message": f"report {n}", "delay": 3600} for n in range(3)])
    call(broker, "POST", "/v1/queues/orders.failed/messages", [{"message": {"order": n}} for n in range(4)])
    yield broker
    broker.stop()
