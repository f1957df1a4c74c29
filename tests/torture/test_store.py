"""A log in PostgreSQL under load: brokers are killed, and PostgreSQL fails over. Nothing acknowledged is lost.

TORTURE=long      50 kills and 10 failovers; otherwise these tests are skipped: they take minutes
"""

from __future__ import annotations

import itertools
import threading
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest

from tests.support.broker import Broker
from tests.support.effort import LONG
from tests.support.ports import free_port
from tests.support.postgres import Postgres, prepared

KILLS, FAILOVERS = 50, 10
PUBLISHED_BETWEEN = 100
pytestmark = [
    pytest.mark.torture,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not LONG, reason="takes minutes; run it with TORTURE=long"),
]


class Ledger:
    """Publishes one message after the other to whoever serves, and notes which were acknowledged."""

    def __init__(self, *brokers: Broker) -> None:
        self._brokers = brokers
        self.acknowledged: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish)
        self._thread.start()

    def _publish(self) -> None:
        for number, broker in zip(itertools.count(), itertools.cycle(self._brokers), strict=False):
            if self._over.is_set():
                return
            body = str(number)
            try:
                if broker.request("POST", "/messages/work", body=body.encode()).status == 201:
                    self.acknowledged.append(body)
            except (OSError, EOFError, AssertionError, IndexError, ValueError):
                pass  # It is dead at the moment.

    def grow(self) -> None:
        """Wait until more messages are acknowledged."""
        until = len(self.acknowledged) + PUBLISHED_BETWEEN
        while len(self.acknowledged) < until:
            self._thread.join(0.01)
            assert self._thread.is_alive()

    def check(self, broker: Broker) -> None:
        """Take everything: each acknowledged message is there."""
        self._over.set()
        self._thread.join()
        found: list[str] = []
        while (answer := broker.request("GET", "/messages/work?max_messages=10")).status == 200:
            found += [part.body.decode() for part in answer.messages()]
        assert set(self.acknowledged) <= set(found)
        print(f"{len(self.acknowledged)} acknowledged, {len(found)} found, 0 lost")


def broker_on(url: str, path: Path, name: str) -> Broker:
    """At an address that stays."""
    settings = ("mqs.oversize=cut",)
    return Broker(path / name, *settings, http=f"127.0.0.1:{free_port()}", flags=("--store", url))


def test_nothing_acknowledged_is_lost_when_the_owner_is_killed_again_and_again(
    postgres: Postgres, tmp_path: Path
) -> None:
    url = postgres.new_store()
    owner, other = broker_on(url, tmp_path, "one"), broker_on(url, tmp_path, "two")
    owner.start()
    owner.create_queue("work", visibility_timeout=3600)
    other.spawn()
    other.wait_until_logged("standing_by")
    other.http = address_of(other)
    ledger = Ledger(owner, other)
    for _ in range(KILLS):
        ledger.grow()
        owner.kill()
        other.wait_until_listening()
        owner.spawn()
        owner.wait_until_logged("standing_by")
        owner, other = other, owner
    ledger.check(owner)
    other.stop()
    owner.stop()


def address_of(broker: Broker) -> tuple[str, int]:
    host, _, port = broker.command[broker.command.index("--http") + 1].rpartition(":")
    return host, int(port)


def test_nothing_acknowledged_is_lost_when_postgresql_fails_over(tmp_path: Path) -> None:
    for turn in range(FAILOVERS):
        with ExitStack() as stack:
            primary, standby = stack.enter_context(prepared()), stack.enter_context(prepared())
            primary.make()
            primary.start(wal_level="replica")
            standby.follow(primary)
            primary.stop()
            # A commit waits for the standby: what the primary acknowledged is there when it dies.
            primary.start(wal_level="replica", synchronous_standby_names="*", synchronous_commit="on")
            standby.start()
            hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
            url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
            primary.new_shard()  # Makes the store.
            broker = broker_on(url, tmp_path, f"turn-{turn}").start()
            broker.create_queue("work", visibility_timeout=3600)
            ledger = Ledger(broker)
            ledger.grow()
            primary.stop()
            standby.promote()
            ledger.grow()
            with psycopg.connect(standby.url()) as session:
                assert session.execute("SELECT pg_is_in_recovery()").fetchone() == (False,)
            ledger.check(broker)
            broker.stop()
