"""Three nodes that share the shards of a store, under load: they are killed, stopped and handed over, and PostgreSQL
fails over. Nothing acknowledged is lost, nothing finished returns, and every queue is served again.

TORTURE=long         100 kills, 50 stops, 50 hand-overs and 10 failovers; otherwise none (tests/wire/test_nodes.py has
                     short forms of the first three)
TORTURE_TIMES=N      N of each
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.server.shards.shard_map import ShardMap
from tests.support.broker import Broker
from tests.support.effort import LONG
from tests.support.ledger import Ledger
from tests.support.nodes import is_balanced, nodes_on, until
from tests.support.postgres import Postgres, prepared
from tests.torture.test_store import attach, report

NODES, SHARDS = 3, 6
QUEUES = [f"work-{number}" for number in range(24)]
assert {ShardMap(SHARDS).of_name(name) for name in QUEUES} == set(range(SHARDS))
TIMES = int(os.environ.get("TORTURE_TIMES", "0"))
pytestmark = [
    pytest.mark.torture,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not (LONG or TIMES), reason="it takes half an hour: TORTURE=long"),
]


Settle = Callable[[], None]  # Waits until the nodes have their shares again.


def kill(node: Broker, ledger: Ledger, settle: Settle) -> float:
    began = time.monotonic()
    node.kill()
    seconds = ledger.served_since(began)
    node.start()
    settle()
    return seconds


def stand_still(node: Broker, ledger: Ledger, settle: Settle) -> float:
    """SIGSTOP until others serve its queues: longer than the lease."""
    began = time.monotonic()
    os.kill(node.pid, signal.SIGSTOP)
    seconds = ledger.served_since(began)
    os.kill(node.pid, signal.SIGCONT)
    settle()
    return seconds


def hand_over(node: Broker, ledger: Ledger, settle: Settle) -> float:
    """SIGTERM, and a new start: its shards go to others and come back. A queue may be served for a while before it is
    handed over, so what counts is how long a queue was not served."""

    def leave_and_come_back() -> None:
        node.ask_to_stop()
        node.wait_until_stopped()
        node.start()
        settle()

    return ledger.longest_silence(leave_and_come_back)


def make_queues(node: Broker) -> None:
    for queue in QUEUES:
        node.create_queue(queue, visibility_timeout=3600)


@pytest.mark.parametrize(
    ("replace", "count", "between"), [(kill, 100, 100), (stand_still, 50, 100), (hand_over, 50, 2000)]
)
def test_nothing_is_lost_or_returned_when_nodes_are_replaced_again_and_again(
    postgres: Postgres,
    tmp_path: Path,
    replace: Callable[[Broker, Ledger, Settle], float],
    count: int,
    between: int,
) -> None:
    """So many messages are published before each. A hand-over must not take longer because the log is long."""
    store, seconds = postgres.new_store(SHARDS), []
    with nodes_on(store, tmp_path, NODES) as nodes:
        make_queues(nodes[0])
        ledger = Ledger(*nodes, queues=QUEUES)
        for number in range(TIMES or count):
            ledger.grow(between)
            seconds.append(replace(nodes[number % NODES], ledger, lambda: until(lambda: is_balanced(store, NODES))))
            print(f"{replace.__name__} {number + 1}: {seconds[-1]:.2f} s")
        ledger.grow()
        seen = ledger.check()
        for node in nodes:
            node.stop()
    report(f"{replace.__name__} of one of {NODES} nodes: {len(seconds)} times, {seen}", seconds)


def test_nothing_is_lost_or_returned_when_the_postgresql_of_nodes_fails_over(tmp_path: Path) -> None:
    with ExitStack() as stack:
        primary, standby = stack.enter_context(prepared()), stack.enter_context(prepared())
        primary.make()
        primary.start()
        database = primary.new_store(SHARDS).rpartition("/")[2]
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"
        nodes = stack.enter_context(nodes_on(url, tmp_path, NODES))
        make_queues(nodes[0])
        ledger, seconds = Ledger(*nodes, queues=QUEUES), []
        for number in range(TIMES or 10):
            attach(standby, primary)
            ledger.grow()
            began = time.monotonic()
            primary.kill()
            standby.promote()
            seconds.append(ledger.served_since(began))
            print(f"failover {number + 1}: {seconds[-1]:.2f} s")
            primary, standby = standby, primary
        ledger.grow()
        seen = ledger.check()
        for node in nodes:
            node.stop()
    report(f"failover of PostgreSQL under {NODES} nodes: {len(seconds)} times, {seen}", seconds)
