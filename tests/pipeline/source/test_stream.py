"""`spark.readStream.format("penstock")`: every event once, whatever stops in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from penstock.errors import EventsLostError, OptionError
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.stream import EventStreamReader
from penstock.storage.backup.making import make_backup
from penstock.storage.backup.restoring import restore_backup
from penstock.storage.backup.source import StoreSource
from tests.pipeline.conftest import url_of
from tests.support.backups import source_of
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import make_queue, publish
from tests.support.lakes import FilledLake
from tests.support.offline import Row, decoded, definitions, make_log, messages, plain

COLUMNS = ("offset", "state", "time", "queue", "body")


class Job:
    """A query that writes a table of Parquet, and can be run again."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self.checkpoint = folder / "checkpoint"
        self.table = folder / "table"

    def frame(self, options: dict[str, Any]) -> DataFrame:
        given = {"columns": ",".join(COLUMNS)} | {name: str(value) for name, value in options.items()}
        return self._spark.readStream.format("penstock").options(**given).load()

    def run(self, **options: Any) -> list[StreamingQueryProgress]:
        """Everything there is now; the batches that had rows."""
        writer = self.frame(options).writeStream.option("checkpointLocation", str(self.checkpoint))
        query = writer.format("parquet").trigger(availableNow=True).start(str(self.table))
        query.awaitTermination()
        return [batch for batch in query.recentProgress if batch.numInputRows]

    def rows(self) -> list[Row]:
        return plain(self._spark.read.parquet(str(self.table)).orderBy("offset").toArrow())


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


def alike(found: Sequence[Row], expected: Sequence[Row]) -> bool:
    """The letters of one record have no order of their own."""
    return sorted(map(repr, found)) == sorted(map(repr, expected))


def test_a_stream_gives_every_event_once_within_its_limits(job: Job, past: Broker, where: dict[str, str]) -> None:
    batches = job.run(**where, maxEventsPerTrigger=300)
    assert len(batches) > 2
    assert all(batch.numInputRows <= 300 for batch in batches)
    assert alike(job.rows(), decoded(past.data, COLUMNS))
    assert not job.run(**where)


def test_a_query_that_starts_again_goes_on_where_it_was(job: Job, start_broker: StartBroker) -> None:
    broker = start_broker()
    make_queue(broker, "work")
    for bodies in ([b"a", b"b"], [b"c"], []):
        if bodies:
            publish(broker, "work", *bodies)
        job.run(url=url_of(broker), maxBytesPerTrigger=1000)
        assert alike(job.rows(), decoded(broker.data, COLUMNS))


def test_a_batch_that_was_not_committed_is_read_again_as_it_was(job: Job, tmp_path: Path) -> None:
    data = make_log(tmp_path / "data", definitions(), messages(1, 30))
    seen: dict[int, list[list[int]]] = {}

    def run(**options: Any) -> None:
        def keep(frame: DataFrame, batch: int) -> None:
            seen.setdefault(batch, []).append([row["offset"] for row in plain(frame.select("offset").toArrow())])

        writer = job.frame({"path": data} | options).writeStream.option("checkpointLocation", str(job.checkpoint))
        writer.foreachBatch(keep).trigger(availableNow=True).start().awaitTermination()

    run(maxEventsPerTrigger=60)
    last = max(seen)
    for note in (str(last), f".{last}.crc"):  # As after a crash between the work and the note that it is done.
        (job.checkpoint / "commits" / note).unlink()
    make_log(data, messages(31, 30))
    run()
    first_time, second_time = seen.pop(last)
    assert first_time == second_time
    offsets = [offset for batch in seen.values() for offset in batch[0]]
    assert sorted(offsets + first_time) == [row["offset"] for row in decoded(data, ("offset",))]


def test_a_running_query_sees_what_comes(job: Job, start_broker: StartBroker, spark: SparkSession) -> None:
    broker = start_broker()
    make_queue(broker, "work")
    frame = job.frame({"url": url_of(broker), "startingOffset": "latest"})
    query: StreamingQuery = frame.writeStream.format("memory").queryName("seen").outputMode("append").start()
    try:
        query.processAllAvailable()
        for number in range(2):
            publish(broker, "work", b"%d" % number)
            query.processAllAvailable()
            assert spark.sql("SELECT body FROM seen WHERE state = 'L'").count() == number + 1
    finally:
        query.stop()


def test_the_progress_of_a_query_tells_its_lag(spark: SparkSession, past_lake: FilledLake) -> None:
    observed = [Row(**batch.observedMetrics["penstock"].asDict()) for batch in past_lake.progress]
    assert sum(each["events"] for each in observed) == len(past_lake.rows("events"))
    assert observed[-1]["offset"] == max(row["offset"] for row in past_lake.rows("events"))
    assert all(0 <= each["lag_seconds"] < 3600 for each in observed)


def test_a_stream_that_retention_has_overtaken_ends_or_goes_on(job: Job, tmp_path: Path) -> None:
    data = make_log(tmp_path / "data", definitions(), messages(1, 10))
    job.run(path=data)
    make_log(data, *(messages(at, 10) for at in range(11, 200, 10)))
    for path in sorted((data / "log").iterdir())[:2]:
        path.unlink()
    with pytest.raises(StreamingQueryException, match="are past retention: the log begins at"):
        job.run(path=data)
    job.run(path=data, failOnDataLoss=False)
    begin = int(min((data / "log").iterdir()).stem)
    assert [row["offset"] for row in job.rows() if row["offset"] >= 13] == [
        row["offset"] for row in decoded(data, ("offset",)) if row["offset"] >= begin
    ]


# The offsets alone, without Spark around them


def reader(data: Path, **options: Any) -> EventStreamReader:
    given = {"path": str(data)} | {name: str(value) for name, value in options.items()}
    return EventStreamReader(parse_options(given))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Offsets 0 to 102, in batches of 10 after the definitions."""
    return make_log(tmp_path / "data", definitions(), *(messages(at, 10) for at in range(1, 100, 10)))


def test_events_and_bytes_bound_a_batch_together(data: Path) -> None:
    both = reader(data, maxEventsPerTrigger=60, maxBytesPerTrigger=1)
    assert both.getDefaultReadLimit() == ReadMaxRows(60)
    assert both.latestOffset({"0": 3}, ReadMaxRows(60)) == {"0": 13}
    assert reader(data, maxEventsPerTrigger=60).latestOffset({"0": 3}, ReadMaxRows(60)) == {"0": 23}
    by_bytes = reader(data, maxBytesPerTrigger=1)
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(1)
    assert by_bytes.latestOffset({"0": 5}, ReadMaxBytes(1)) == {"0": 13}
    assert both.latestOffset({"0": 3}, ReadAllAvailable()) == {"0": 103}
    assert reader(data).getDefaultReadLimit() == ReadAllAvailable()


def test_a_batch_waits_for_enough_events_but_not_for_longer_than_asked(data: Path) -> None:
    patient = reader(data, minEventsPerTrigger=100, maxTriggerDelay="1h")
    assert patient.latestOffset({"0": 3}, ReadAllAvailable()) == {"0": 103}
    assert patient.latestOffset({"0": 4}, ReadAllAvailable()) == {"0": 4}
    assert patient.latestOffset({"0": 103}, ReadAllAvailable()) == {"0": 103}
    hasty = reader(data, minEventsPerTrigger=100, maxTriggerDelay="0s")
    assert hasty.latestOffset({"0": 4}, ReadAllAvailable()) == {"0": 103}
    patient.prepareForTriggerAvailableNow()
    assert patient.latestOffset({"0": 4}, ReadAllAvailable()) == {"0": 103}, "it would wait for ever"


def test_one_record_is_read_whatever_the_limit(data: Path) -> None:
    assert reader(data, maxEventsPerTrigger=1).latestOffset({"0": 3}, ReadMaxRows(1)) == {"0": 4}


def test_a_run_with_available_now_ends_where_the_log_ended_at_its_start(data: Path) -> None:
    stream = reader(data)
    stream.prepareForTriggerAvailableNow()
    make_log(data, messages(101, 10))
    assert stream.latestOffset({"0": 0}, ReadAllAvailable()) == {"0": 103}
    assert stream.latestOffset({"0": 103}, ReadAllAvailable()) == {"0": 103}
    assert stream.reportLatestOffset() == {"0": 113}


def test_a_stream_begins_where_it_is_told(data: Path) -> None:
    assert reader(data).initialOffset() == {"0": 0}
    assert reader(data, startingOffset="latest").initialOffset() == {"0": 103}
    assert reader(data, startingOffset=7).initialOffset() == {"0": 7}
    assert reader(data, startingOffset="1970-01-01T00:00:00.000002Z").initialOffset() == {"0": 103}


def test_a_checkpoint_of_another_log_is_refused(data: Path) -> None:
    with pytest.raises(EventsLostError, match="this is another log, or it was restored"):
        reader(data, failOnDataLoss=False).latestOffset({"0": 5000}, ReadAllAvailable())
    with pytest.raises(EventsLostError, match="past the end of the log"):
        reader(data).partitions({"0": 0}, {"0": 5000})
    with pytest.raises(EventsLostError, match="the checkpoint belongs to shard 7 of another log"):
        reader(data).latestOffset({"7": 0}, ReadAllAvailable())


def test_a_restored_log_continues_a_checkpoint_only_from_before_the_backup(data: Path, tmp_path: Path) -> None:
    with source_of(data) as source:
        make_backup(tmp_path / "backup", StoreSource([source]))
    make_log(data, messages(101, 10))
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    make_log(tmp_path / "restored", messages(101, 20))  # Other events with the same offsets.
    restored = reader(tmp_path / "restored")
    latest = restored.latestOffset({"0": 103}, ReadAllAvailable())
    assert (latest["0"], set(latest)) == (123, {"0", "log"})
    assert restored.latestOffset(latest, ReadAllAvailable()) == latest
    with pytest.raises(
        EventsLostError, match=r"restored from a backup that ends at offset 103, but .* read up to 113"
    ):
        restored.latestOffset({"0": 113}, ReadAllAvailable())
    with pytest.raises(EventsLostError, match="ends at offset 0"):
        reader(data).latestOffset(latest, ReadAllAvailable())


def test_a_stream_has_no_end(data: Path) -> None:
    with pytest.raises(OptionError, match="a stream has no end"):
        reader(data, endingOffset=5)


def test_segments_that_go_while_they_are_read_are_skipped_or_missed(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = sorted((data / "log").iterdir())
    assert len(paths) > 3
    strict, forgiving = reader(data), reader(data, failOnDataLoss="false")
    begun = [each._batches(each._store.logs[0], 0, 103) for each in (strict, forgiving)]
    first = [next(batches)[0].base_offset for batches in begun]
    for path in paths[1:3]:
        path.unlink()
    with pytest.raises(EventsLostError, match="past retention"):
        list(begun[0])
    offsets = [header.base_offset for header, _ in begun[1]]
    assert first == [0, 0]
    assert offsets[-1] == 93
    assert not [at for at in offsets if int(paths[1].stem) <= at < int(paths[3].stem)]
    assert "the query continues from there" in caplog.text
