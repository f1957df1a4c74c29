"""`read=queue`: messages leased for a batch, finished when it is done, and the same ones when it comes again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import MessagesLostError
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.queue import QueueStreamReader, Share
from tests.pipeline.conftest import url_of
from tests.pipeline.sink.test_writer import bodies
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import make_queue, publish


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    broker = start_broker()
    make_queue(broker, "in")
    make_queue(broker, "work")
    return broker


def left(broker: Broker, queue: str = "in") -> dict[str, int]:
    status = broker.request("GET", f"/v1/queues/{queue}").json()["status"]
    return {state: status[state] for state in ("ready", "leased") if status[state]}


class Job:
    """A query that reads a queue, and can be run again."""

    def __init__(self, spark: SparkSession, folder: Path, broker: Broker) -> None:
        self._read = spark.readStream.format("penstock").options(url=url_of(broker), read="queue", queue="in")
        self._write = {"url": url_of(broker), "queue": "work"}
        self.checkpoint = folder / "checkpoint"
        self.seen: dict[int, list[list[str]]] = {}

    def run(self, *, into_queue: bool = False, **options: Any) -> None:
        frame = self._read.options(**{name: str(value) for name, value in options.items()}).load()
        if into_queue:
            writer = frame.select("body").writeStream.format("penstock").options(**self._write)
        else:
            writer = frame.writeStream.foreachBatch(self._keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        writer.start().awaitTermination()

    def forget_the_last_batch(self) -> None:
        """As after a crash between the work and the note that it is done."""
        last = max(int(note.name) for note in (self.checkpoint / "commits").glob("[0-9]*"))
        for note in (str(last), f".{last}.crc"):
            (self.checkpoint / "commits" / note).unlink()

    def _keep(self, frame: DataFrame, batch: int) -> None:
        rows = frame.selectExpr("cast(body as string) as text").collect()
        self.seen.setdefault(batch, []).append(sorted(row["text"] for row in rows))


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path, broker: Broker) -> Job:
    return Job(spark, tmp_path, broker)


def test_messages_are_read_once_and_finished(job: Job, broker: Broker) -> None:
    publish(broker, "in", *[b"%d" % number for number in range(50)])
    job.run(maxMessagesPerTrigger=20)
    assert [len(rows) for (rows,) in job.seen.values()] == [20, 20, 10]
    assert sorted(int(text) for (rows,) in job.seen.values() for text in rows) == list(range(50))
    assert left(broker) == {}
    job.run()
    assert len(job.seen) == 3


def test_a_batch_that_comes_again_is_the_same_messages(broker: Broker) -> None:
    reader = QueueStreamReader(parse_options({"url": url_of(broker), "read": "queue", "queue": "in"}))
    publish(broker, "in", b"c", b"d")
    offset = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    (share,) = reader.partitions(reader.initialOffset(), offset)
    again = [[row["body"] for batch in reader.read(share) for row in batch.to_pylist()] for _ in range(2)]
    assert again == [[b"c", b"d"]] * 2
    reader.commit(offset)
    reader.commit(offset)
    assert left(broker) == {}
    reader.stop()


def test_messages_that_another_consumer_has_meanwhile_end_the_query_unless_it_may_go_on(broker: Broker) -> None:
    publish(broker, "in", b"a", b"b", b"c")
    given = {"url": url_of(broker), "read": "queue", "queue": "in"}
    reader = QueueStreamReader(parse_options(given))
    start = reader.initialOffset()
    offset = reader.latestOffset(start, reader.getDefaultReadLimit())
    (share,) = reader.partitions(start, offset)
    stranger = Share("somebody-else", share.claimed)
    with pytest.raises(MessagesLostError, match="3 messages of this batch are gone or leased by other consumers"):
        list(reader.read(stranger))
    patient = QueueStreamReader(parse_options(given | {"failOnDataLoss": "false"}))
    assert sum(len(batch) for batch in patient.read(stranger)) == 0
    assert sum(len(batch) for batch in patient.read(share)) == 3


def test_from_queue_to_queue_every_message_goes_once_also_in_a_batch_that_comes_again(
    job: Job, broker: Broker
) -> None:
    publish(broker, "in", *[b"%d" % number for number in range(30)])
    job.run(into_queue=True, maxMessagesPerTrigger=20)
    job.forget_the_last_batch()
    publish(broker, "in", b"more")
    with pytest.raises(Exception, match="10 messages of this batch are gone or leased by other consumers"):
        job.run(into_queue=True)  # They were finished: only who tampers with a checkpoint comes here.
    job.run(into_queue=True, failOnDataLoss=False)
    assert bodies(broker) == {b"%d" % number: 1 for number in range(30)} | {b"more": 1}
    assert left(broker) == {}


def test_a_batch_read_of_a_queue_is_refused(spark: SparkSession, broker: Broker) -> None:
    read = spark.read.format("penstock").options(url=url_of(broker), read="queue", queue="in")
    with pytest.raises(Exception, match="read=queue is for streams"):
        read.load().collect()


def test_the_checkpoint_knows_the_places_of_messages(job: Job, broker: Broker) -> None:
    publish(broker, "in", b"a", b"b", b"c")
    job.run()
    *_, offset = (job.checkpoint / "offsets" / "0").read_text().splitlines()
    told = json.loads(offset)
    assert told["claimed"] == [[1, 1, 3]]
