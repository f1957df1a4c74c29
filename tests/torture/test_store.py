"""A log in PostgreSQL under load: brokers are killed, stopped and replaced, and PostgreSQL fails over.

Nothing acknowledged is lost, nothing finished returns, and somebody serves again.

TORTURE=long         100 kills, 50 stops, 50 hand-overs and 10 failovers; otherwise 1 failover (for the other three,
                     tests/wire/test_store.py has short forms)
TORTURE_TIMES=N      N of each
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.broker import Broker, address
from tests.support.effort import LONG
from tests.support.failover import a_pair
from tests.support.ledger import Ledger
from tests.support.ports import free_port
from tests.support.postgres import Postgres
from tests.support.replacing import Replace, hand_over, kill, stand_still

TIMES = int(os.environ.get("TORTURE_TIMES", "0"))
pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]


def times(long: int) -> int:
    return TIMES or (long if LONG else 1)


def come_back(broker: Broker) -> None:
    if not broker.running:
        broker.spawn()
    broker.wait_until_logged("standing_by")


@pytest.mark.parametrize(("replace", "count"), [(kill, times(100)), (stand_still, times(50)), (hand_over, times(50))])
def test_nothing_is_lost_or_returned_when_the_owner_is_replaced_again_and_again(
    postgres: Postgres, tmp_path: Path, replace: Replace, count: int
) -> None:
    with three_brokers(postgres.new_store(), tmp_path) as ledger:
        seconds = []
        for _ in range(count):
            ledger.grow()
            seconds.append(replace(ledger.owner, ledger.served, come_back))
        ledger.grow()
        seen = ledger.check()
    report(f"{replace.__name__}: {count} times, {seen}", seconds)


@contextmanager
def three_brokers(url: str, path: Path) -> Iterator[Ledger]:
    """One that serves, two that wait, and clients."""
    brokers = [broker_on(url, path / str(number)) for number in range(3)]
    try:
        brokers[0].start().create_queue("work", visibility_timeout=3600)
        for waiting in brokers[1:]:
            waiting.spawn()
            waiting.wait_until_logged("standing_by")
        yield Ledger(*brokers)
    finally:
        for broker in brokers:
            if broker.running:
                broker.kill()


def broker_on(url: str, data: Path) -> Broker:
    """At an address that stays."""
    http = f"127.0.0.1:{free_port()}"
    broker = Broker(data, http=http, flags=("--store", url))
    broker.http = address(http)
    return broker


def report(what: str, seconds: list[float]) -> None:
    print(f"{what}; served again after {statistics.median(seconds):.2f} s, at worst {max(seconds):.2f} s")


def test_nothing_is_lost_or_returned_when_postgresql_fails_over(tmp_path: Path) -> None:
    with a_pair() as pair, ExitStack() as stack:
        broker = broker_on(pair.new_store(), tmp_path / "broker").start()
        stack.callback(lambda: broker.kill() if broker.running else None)
        broker.create_queue("work", visibility_timeout=3600)
        ledger, seconds = Ledger(broker), []
        for _ in range(times(10)):
            pair.attach()
            ledger.grow()
            began = time.monotonic()
            pair.fail_over()
            seconds.append(ledger.served.since(began))
        ledger.grow()
        seen = ledger.check()
        broker.stop()
    report(f"failover of PostgreSQL: {len(seconds)} times, {seen}", seconds)
