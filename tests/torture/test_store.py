"""A log in PostgreSQL under load: brokers are killed, stopped and replaced, and PostgreSQL fails over.

Nothing acknowledged is lost, nothing finished returns, and somebody serves again.

TORTURE=long         100 kills, 50 stops, 50 hand-overs and 10 failovers; otherwise 1 failover (for the other three,
                     tests/wire/test_store.py has short forms)
TORTURE_TIMES=N      N of each
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.broker import Broker, address
from tests.support.effort import LONG
from tests.support.ledger import Ledger
from tests.support.ports import free_port
from tests.support.postgres import Postgres, prepared

TIMES = int(os.environ.get("TORTURE_TIMES", "0"))
pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]


def times(long: int) -> int:
    return TIMES or (long if LONG else 1)


def kill(owner: Broker, ledger: Ledger) -> float:
    began = time.monotonic()
    owner.kill()
    seconds = ledger.served_since(began)
    owner.spawn()
    return seconds


def stand_still(owner: Broker, ledger: Ledger) -> float:
    """SIGSTOP until another one serves: longer than the lease."""
    os.kill(owner.pid, signal.SIGSTOP)
    seconds = ledger.served_since(time.monotonic(), by_other_than=owner)
    os.kill(owner.pid, signal.SIGCONT)
    return seconds


def hand_over(owner: Broker, ledger: Ledger) -> float:
    began = time.monotonic()
    owner.ask_to_stop()
    seconds = ledger.served_since(began, by_other_than=owner)
    owner.wait_until_stopped()
    owner.spawn()
    return seconds


@pytest.mark.parametrize(("replace", "count"), [(kill, times(100)), (stand_still, times(50)), (hand_over, times(50))])
def test_nothing_is_lost_or_returned_when_the_owner_is_replaced_again_and_again(
    postgres: Postgres, tmp_path: Path, replace: Callable[[Broker, Ledger], float], count: int
) -> None:
    with three_brokers(postgres.new_store(), tmp_path) as ledger:
        seconds = []
        for _ in range(count):
            ledger.grow()
            owner = ledger.owner
            seconds.append(replace(owner, ledger))
            owner.wait_until_logged("standing_by")
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
    with ExitStack() as stack:
        primary, standby = stack.enter_context(prepared()), stack.enter_context(prepared())
        primary.make()
        primary.start()
        database = primary.new_store().rpartition("/")[2]
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"
        broker = broker_on(url, tmp_path / "broker").start()
        stack.callback(lambda: broker.kill() if broker.running else None)
        broker.create_queue("work", visibility_timeout=3600)
        ledger, seconds = Ledger(broker), []
        for _ in range(times(10)):
            attach(standby, primary)
            ledger.grow()
            began = time.monotonic()
            primary.kill()
            standby.promote()
            seconds.append(ledger.served_since(began))
            primary, standby = standby, primary
        ledger.grow()
        seen = ledger.check()
        broker.stop()
    report(f"failover of PostgreSQL: {len(seconds)} times, {seen}", seconds)


def attach(standby: Postgres, primary: Postgres) -> None:
    """From now on a commit waits for the standby: what is acknowledged is there when the primary dies."""
    standby.follow(primary)
    standby.start()
    with psycopg.connect(primary.url(), autocommit=True) as session:
        session.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        session.execute("SELECT pg_reload_conf()")
        synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        while session.execute(synchronous).fetchone() != (1,):
            pass
