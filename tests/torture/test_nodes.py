"""Three nodes that share the shards of a store, under load: they are killed, stopped and handed over, and PostgreSQL
fails over. Nothing acknowledged is lost, nothing finished returns, and every queue is served again.

TORTURE=long         100 kills, 50 stops, 50 hand-overs and 10 failovers; otherwise none (tests/wire/test_nodes.py has
                     short forms of the first three)
TORTURE_TIMES=N      N of each
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.broker.shard_map import ShardMap
from tests.support.broker import Broker
from tests.support.effort import LONG
from tests.support.failover import a_pair
from tests.support.ledger import Ledger
from tests.support.nodes import is_balanced, nodes_on, until
from tests.support.postgres import Postgres
from tests.support.replacing import Replace, hand_over, kill, stand_still
from tests.torture.test_store import report

NODES, SHARDS = 3, 6
QUEUES = [f"work-{number}" for number in range(24)]
assert {ShardMap(SHARDS).of_name(name) for name in QUEUES} == set(range(SHARDS))
TIMES = int(os.environ.get("TORTURE_TIMES", "0"))
pytestmark = [
    pytest.mark.torture,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not (LONG or TIMES), reason="it takes half an hour: TORTURE=long"),
]


def make_queues(node: Broker) -> None:
    for queue in QUEUES:
        node.create_queue(queue, visibility_timeout=3600)


@pytest.mark.parametrize(
    ("replace", "count", "between"), [(kill, 100, 100), (stand_still, 50, 100), (hand_over, 50, 2000)]
)
def test_nothing_is_lost_or_returned_when_nodes_are_replaced_again_and_again(
    postgres: Postgres, tmp_path: Path, replace: Replace, count: int, between: int
) -> None:
    """So many messages are published before each. A hand-over must not take longer because the log is long."""
    store, seconds = postgres.new_store(SHARDS), []

    def come_back(node: Broker) -> None:
        if not node.running:
            node.start()
        until(lambda: is_balanced(store, NODES))

    with nodes_on(store, tmp_path, NODES) as nodes:
        make_queues(nodes[0])
        ledger = Ledger(*nodes, queues=QUEUES)
        for number in range(TIMES or count):
            ledger.grow(between)
            seconds.append(replace(nodes[number % NODES], ledger.served, come_back))
            print(f"{replace.__name__} {number + 1}: {seconds[-1]:.2f} s")
        ledger.grow()
        seen = ledger.check()
        for node in nodes:
            node.stop()
    report(f"{replace.__name__} of one of {NODES} nodes: {len(seconds)} times, {seen}", seconds)


def test_nothing_is_lost_or_returned_when_the_postgresql_of_nodes_fails_over(tmp_path: Path) -> None:
    with a_pair() as pair, nodes_on(pair.new_store(SHARDS), tmp_path, NODES) as nodes:
        make_queues(nodes[0])
        ledger, seconds = Ledger(*nodes, queues=QUEUES), []
        for number in range(TIMES or 10):
            pair.attach()
            ledger.grow()
            began = time.monotonic()
            pair.fail_over()
            seconds.append(ledger.served.since(began))
            print(f"failover {number + 1}: {seconds[-1]:.2f} s")
        ledger.grow()
        seen = ledger.check()
        for node in nodes:
            node.stop()
    report(f"failover of PostgreSQL under {NODES} nodes: {len(seconds)} times, {seen}", seconds)
