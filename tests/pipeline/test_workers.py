"""Spark with a broker of two workers and four shards, whose workers are killed in the middle of a batch."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import SparkError
from penstock.pipeline.broker import Broker as Client
from penstock.storage.shards import shard_directory
from tests.server.test_supervisor import FLAGS, NAMES
from tests.support.broker import Broker, workers_of
from tests.support.effort import LONG
from tests.support.lakes import FilledLake, assert_same_tables, events_of_shards
from tests.support.offline import decoded
from tests.support.staged_rows import arrow

SHARDS = 4
CHUNKS, ROWS = 4, 4000  # Rows in each chunk.
_PATIENT = 60  # Times as long: a busy machine takes its time to start a worker again.


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    shared = Broker(tmp_path_factory.mktemp("workers") / "data", flags=FLAGS).start()
    for name in NAMES:
        shared.create_queue(name)
    yield shared
    shared.stop()


def logged(data: Path) -> Counter[tuple[str, bytes]]:
    """Every message that was ever published, with its queue."""
    rows = [
        row
        for shard in range(SHARDS)
        for row in decoded(shard_directory(data, shard).path, ("state", "queue", "body"))
    ]
    return Counter((row["queue"], row["body"]) for row in rows if row["state"] == "L")


def kill_workers(broker: Broker) -> None:
    """One after the other; the second when the first is back."""
    for worker in workers_of(broker):
        os.kill(worker, signal.SIGKILL)
        broker.wait_until_logged("worker_killed")
        broker.wait_until_logged("worker_listening")


def test_a_batch_for_queues_of_all_shards_counts_once_when_both_workers_are_killed(broker: Broker) -> None:
    before = logged(broker.data)
    rows = [(NAMES[number % len(NAMES)], f"row {number}") for number in range(CHUNKS * ROWS)]
    killing = threading.Thread(target=kill_workers, args=(broker,))
    with closing(Client(broker.url)) as client:
        for chunk in range(CHUNKS):
            some = sorted(rows[chunk * ROWS : (chunk + 1) * ROWS], key=lambda row: row[0])
            data = arrow({"queue": [queue for queue, _ in some], "body": [body for _, body in some]})
            client.ask("POST", "/v1/stage/job/0/part", {"chunk": chunk}, data, patient=_PATIENT)
        killing.start()
        commit = json.dumps({"parts": [{"part": "part", "chunks": CHUNKS}]}).encode()
        client.ask("POST", "/v1/stage/job/0/commit", body=commit, patient=_PATIENT)
        killing.join()
        client.ask("POST", "/v1/stage/job/0/commit", body=commit, patient=_PATIENT)  # Also the second worker is back.
    assert logged(broker.data) - before == Counter((queue, body.encode()) for queue, body in rows)


@pytest.mark.torture
@pytest.mark.skipif(not LONG, reason="the lake of two shards is compared in the short run: TORTURE=long")
def test_the_lake_of_all_shards_is_complete_when_workers_are_killed(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    frame = spark.sql("select concat('queue-', id % 8) as queue, cast(id as string) as body from range(400)")
    frame.write.format("penstock").option("url", broker.url).mode("append").save()
    filled = FilledLake(spark, tmp_path / "lake", url=broker.url)
    killing = threading.Thread(target=kill_workers, args=(broker,))
    killing.start()
    try:
        filled.fill(maxEventsPerTrigger=30_000)
    except SparkError:  # The broker was away for longer than a task tries.
        killing.join()
        filled.fill()
    killing.join()
    filled.fill()
    assert_same_tables(filled, events_of_shards(broker.data, SHARDS), shards=SHARDS)
    assert {row["shard"] for row in filled.rows("messages")} == set(range(SHARDS))
