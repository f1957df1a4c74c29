"""Operators see how long commands of each dialect take."""

from __future__ import annotations

import re

from penstock.limits import COMMANDS_PER_SAMPLE
from tests.support.broker import StartBroker


def test_one_command_in_some_is_measured_and_those_that_wait_are_not(start_broker: StartBroker) -> None:
    broker = start_broker()
    broker.create_queue("orders")
    with broker.connect() as connection:
        for _ in range(3 * COMMANDS_PER_SAMPLE):
            assert connection.request("POST", "/messages/orders", body=b"x").status == 201
    metrics = broker.request("GET", "/metrics").body.decode()
    counted = dict(re.findall(r'^penstock_command_seconds_count\{dialect="(\w+)"\} (\d+)', metrics, re.M))
    assert int(counted["mqs"]) in (2, 3)
    assert set(counted) <= {"mqs", "native"}
