"""Spark on two brokers that share the shards of a store: in the middle of a batch, one is killed or hands over.

TORTURE=long         10 rounds of both, instead of 1
TORTURE_TIMES=N      N rounds
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from penstock.broker.shard_map import ShardMap
from penstock.storage.shards import shard_directory
from tests.support.broker import Broker
from tests.support.command_line import penstock
from tests.support.effort import LONG
from tests.support.lakes import FilledLake, assert_same_tables, events_of_shards
from tests.support.nodes import is_balanced, nodes_on, tables, until
from tests.support.offline import decoded
from tests.support.postgres import Postgres
from tests.support.waiting import wait_until

SHARDS = 4
QUEUES = [f"queue-{number}" for number in range(8)]
assert {ShardMap(SHARDS).of_name(name) for name in QUEUES} == set(range(SHARDS))
ROUNDS = int(os.environ.get("TORTURE_TIMES", "0")) or (10 if LONG else 1)
ROWS = 12_000  # In a batch.
EVENTS_PER_BATCH = 15_000
LOOK_SECONDS_MAX = 90.0
LOOK_PAUSE_SECONDS = 0.005  # What is looked for may be over after a tenth of a second.

pytestmark = [pytest.mark.torture, pytest.mark.timeout(3600)]


class Cluster(NamedTuple):
    store: str
    nodes: list[Broker]

    @property
    def url(self) -> str:
        return ",".join(node.url for node in self.nodes)

    def owner(self, shard: int) -> Broker:
        owned = tables(self.store).shards[shard]
        return next(node for node in self.nodes if address_of(node) == owned.address)


Fault = Callable[[Cluster], AbstractContextManager[None]]


def address_of(node: Broker) -> str:
    return "{}:{}".format(*node.http)


@contextmanager
def killed(cluster: Cluster) -> Iterator[None]:
    """The node that has shard 0, and with it the batches of the sink. It is there again afterwards."""
    node = cluster.owner(0)
    node.kill()
    yield
    node.start()
    until(lambda: is_balanced(cluster.store, 2))


@contextmanager
def drained(cluster: Cluster) -> Iterator[None]:
    """The same node hands over what it has."""
    leaving = address_of(cluster.owner(0))
    assert penstock("cluster", "drain", cluster.store, leaving).returncode == 0
    until(lambda: all(each.is_leased and each.address != leaving for each in tables(cluster.store).shards))
    yield
    assert penstock("cluster", "drain", cluster.store, leaving, "--undo").returncode == 0
    until(lambda: is_balanced(cluster.store, 2))


@contextmanager
def meanwhile(cluster: Cluster, fault: Fault, is_time: Callable[[], bool]) -> Iterator[None]:
    """The fault happens beside what the caller does, as soon as it is time."""
    ended = threading.Event()

    def happen() -> None:
        wait_until(is_time, "it is time for a fault", LOOK_SECONDS_MAX, LOOK_PAUSE_SECONDS)
        with fault(cluster):
            ended.wait()

    with ThreadPoolExecutor(1) as pool:
        happened = pool.submit(happen)
        try:
            yield
        finally:
            ended.set()
        happened.result()


@pytest.fixture
def cluster(postgres: Postgres, tmp_path: Path) -> Iterator[Cluster]:
    store = postgres.new_store(SHARDS)
    with nodes_on(store, tmp_path, 2) as nodes:
        for name in QUEUES:
            nodes[0].create_queue(name)
        yield Cluster(store, nodes)


def write(spark: SparkSession, cluster: Cluster, number: int) -> Counter[tuple[str, bytes]]:
    """A batch for queues of all shards, once with its number. Returns its rows."""
    rows = f"select concat('queue-', id % {len(QUEUES)}) as queue, concat('{number} ', id) as body from range({ROWS})"
    written = spark.sql(rows).write.format("penstock").options(url=cluster.url, query="rows", batch=str(number))
    written.mode("append").save()
    return Counter((QUEUES[row % len(QUEUES)], f"{number} {row}".encode()) for row in range(ROWS))


def admits(cluster: Cluster) -> bool:
    """Whether the rows of a committed batch are on their way into their queues."""
    answer = cluster.nodes[0].request("GET", "/v1/stage/rows")
    return answer.status == 200 and answer.json()["admitting"] > 0


def logged(data: Path) -> Counter[tuple[str, bytes]]:
    """Every message that was ever published, with its queue."""
    shards = (decoded(shard_directory(data, shard).path, ("state", "queue", "body")) for shard in range(SHARDS))
    return Counter((row["queue"], row["body"]) for rows in shards for row in rows if row["state"] == "L")


def reads(filled: FilledLake) -> Callable[[], bool]:
    """Whether a batch is being read into the lake, since now."""
    before = len(filled.written)
    staged = filled.lake.path / "events"
    return lambda: len(filled.written) > before or any(staged.glob("_staging-*"))


def test_each_batch_counts_once_and_each_event_is_in_the_tables_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    filled = FilledLake(spark, tmp_path / "lake", url=cluster.url)
    expected: Counter[tuple[str, bytes]] = Counter()
    for number, (of_sink, of_source) in enumerate([(killed, drained), (drained, killed)] * ROUNDS):
        with meanwhile(cluster, of_sink, partial(admits, cluster)):
            expected += write(spark, cluster, number)
        write(spark, cluster, number)  # It is there already.
        with meanwhile(cluster, of_source, reads(filled)):
            filled.fill(maxEventsPerTrigger=EVENTS_PER_BATCH)
    for node in cluster.nodes:
        node.stop()
    data = tmp_path / "exported"
    exported = penstock("store", "export", cluster.store, str(data))
    assert exported.returncode == 0, exported
    assert logged(data) == expected
    assert_same_tables(filled, events_of_shards(data, SHARDS), shards=SHARDS)
