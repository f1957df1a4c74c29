"""`df.write.format("penstock")`: every row once in its queue, whatever is tried again."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.sink.options import SinkOptions
from penstock.pipeline.sink.writer import BatchWriter
from tests.pipeline.conftest import url_of
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import make_queue
from tests.support.offline import decoded


def bodies(broker: Broker, queue: str = "work") -> Counter[bytes]:
    """What is in a queue, or ever was: every message that was logged there."""
    rows = decoded(broker.data, ("state", "queue", "body"))
    return Counter(row["body"] for row in rows if (row["state"], row["queue"]) == ("L", queue))


def save(frame: DataFrame, broker: Broker, **options: Any) -> None:
    given = {"url": url_of(broker)} | {name: str(value) for name, value in options.items()}
    frame.write.format("penstock").options(**given).mode("append").save()


@pytest.fixture
def broker(start_broker: StartBroker) -> Broker:
    broker = start_broker()
    make_queue(broker, "work")
    return broker


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One for all that is refused: it leaves nothing behind."""
    broker = Broker(tmp_path_factory.mktemp("strict") / "data").start()
    make_queue(broker, "work")
    yield broker
    broker.stop()


def test_every_row_becomes_a_message(spark: SparkSession, broker: Broker) -> None:
    save(spark.range(25_000).selectExpr("cast(id as string) as body"), broker, queue="work")
    assert bodies(broker) == Counter(b"%d" % number for number in range(25_000))


def test_columns_say_where_a_row_goes_and_how(spark: SparkSession, broker: Broker) -> None:
    make_queue(broker, "other")
    frame = spark.sql("""
        select * from values
            (X'00FF', 'other', 'k1', 'thing', 3, 0.5, 'a/b', map('X-Trace-Id', 't')),
            (X'02', null, null, null, null, null, null, null)
        as rows(body, queue, key, object, priority, delay, content_type, headers)
    """)
    save(frame, broker, queue="work")
    wanted = ("state", "queue", "body", "key", "object", "priority", "content_type", "visible_at", "time")
    (other, work) = sorted(
        (row for row in decoded(broker.data, wanted) if row["state"] == "L"), key=lambda row: row["queue"]
    )
    assert (other["body"], other["key"], other["object"], other["content_type"]) == (
        b"\x00\xff",
        b"k1",
        "thing",
        "a/b",
    )
    assert (other["priority"], other["visible_at"] - other["time"]) == (3, 500_000)
    assert (work["body"], work["key"], work["priority"], work["visible_at"]) == (b"\x02", None, 0, work["time"])


def test_rows_go_to_topics_too(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql("""
        select * from values
            ('1', array('fruit.red', 'news'), null),
            ('2', null, 'work'),
            ('3', null, null),
            ('4', array('news'), null)
        as rows(body, topics, queue)
    """)
    save(frame, broker, topics="fruit.green,veg.green")
    save(spark.sql("select '5' as body"), broker, topics="veg")
    queues = broker.request("GET", "/v1/queues").json()["queues"]
    ready = {queue["name"]: queue["status"]["ready"] for queue in queues}
    assert ready == {"work": 1, "fruit": 2, "news": 2, "veg": 2}


def test_a_batch_with_a_name_is_written_once(spark: SparkSession, broker: Broker) -> None:
    frame = spark.range(3).selectExpr("cast(id as string) as body")
    for batch in (0, 1, 1, 0):
        save(frame, broker, queue="work", query="nightly", batch=batch)
    assert bodies(broker) == {b"0": 2, b"1": 2, b"2": 2}


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("'x' as body", {}, 'set the option "queue" or "topics", or add a column'),
        ("'x' as body", {"queue": "work", "topic": "t"}, "unknown option topic"),
        ("'x' as body", {"queue": "work", "topics": "t"}, 'set the option "queue" or "topics", not both'),
        ("'x' as body", {"queue": "work", "query": "q"}, 'set both options "query" and "batch"'),
        ("'x' as text", {"queue": "work"}, "unknown column text; the columns are body"),
        ("1 as body", {"queue": "work"}, "column body has type int, must be string or binary"),
        ("'q' as queue", {}, "the column body is missing"),
        ("'x' as body", {"queue": "nowhere"}, "the queue does not exist: nowhere"),
        ("null :: string as body", {"queue": "work"}, "a row has no body"),
    ],
)
def test_what_cannot_be_written_is_said(
    spark: SparkSession, strict_broker: Broker, columns: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(Exception, match=said):
        save(spark.sql(f"select {columns}"), strict_broker, **options)
    assert not bodies(strict_broker)


def test_a_queue_is_never_written_over(spark: SparkSession, broker: Broker) -> None:
    frame = spark.sql("select 'x' as body").write.format("penstock").options(url=url_of(broker), queue="work")
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.mode("overwrite").save()


def test_two_attempts_that_both_stage_the_rows_of_a_task_count_once(spark: SparkSession, broker: Broker) -> None:
    """What Spark does when it speculates, with one machine that it would not do it on."""
    frame = spark.range(0, 3000, 1, 3).selectExpr("cast(id as string) as body")
    writer = BatchWriter(SinkOptions(url=url_of(broker), queue="work"), frame.schema, overwrite=False)

    def twice(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)
        staged = [pickle.dumps(writer.write(iter(rows))) for _ in range(2)]
        yield pa.RecordBatch.from_pydict({"first": staged[:1], "second": staged[1:]})

    attempts = frame.mapInArrow(twice, "first binary, second binary").collect()
    assert len(attempts) == 3
    chosen = [pickle.loads(row["second" if number % 2 else "first"]) for number, row in enumerate(attempts)]
    writer.commit(chosen)
    writer.commit(chosen)
    writer.abort(chosen)  # Spark may do this after a commit that it did not hear of.
    assert bodies(broker) == Counter(b"%d" % number for number in range(3000))
    assert "penstock_staged_bytes 0.0" in broker.request("GET", "/metrics").body.decode()


def test_what_cannot_be_dropped_is_no_error_of_its_own(spark: SparkSession) -> None:
    """It would hide the error that the batch is given up for."""
    options = SinkOptions(url="http://127.0.0.1:9", queue="work")
    BatchWriter(options, spark.sql("select 'x' as body").schema, overwrite=False).abort([])


class Stream:
    """A query from a folder of text files, a file a batch, into a queue."""

    def __init__(self, spark: SparkSession, folder: Path, broker: Broker) -> None:
        self._spark = spark
        self._options = {"url": url_of(broker), "queue": "work"}
        self.files = folder / "files"
        self.files.mkdir()
        self.checkpoint = folder / "checkpoint"

    def add(self, *lines: str) -> None:
        (self.files / f"{len(list(self.files.iterdir()))}.txt").write_text("\n".join(lines) + "\n")

    def run(self) -> None:
        read = self._spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        frame = read.load(str(self.files)).withColumnRenamed("value", "body")
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint)).format("penstock")
        writer.options(**self._options).trigger(availableNow=True).start().awaitTermination()


def test_a_stream_writes_every_row_once_also_in_a_batch_that_comes_again(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path, broker)
    stream.add("a", "b")
    stream.add("c", "a")
    stream.run()
    for note in ("1", ".1.crc"):  # As after a crash between the work and the note that it is done.
        (stream.checkpoint / "commits" / note).unlink()
    stream.add("d")
    stream.run()
    assert bodies(broker) == {b"a": 2, b"b": 1, b"c": 1, b"d": 1}
    query = json.loads((stream.checkpoint / "metadata").read_text())["id"]
    assert broker.request("GET", f"/v1/stage/{query}").json()["committed"] == 2
