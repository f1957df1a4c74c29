"""`spark.read.format("penstock")`: what Spark shows is what the log holds."""

from __future__ import annotations

import pickle
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock import Client
from penstock.pipeline.source.columns import COLUMNS
from penstock.pipeline.source.events import EventReader
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.shards import names_here
from tests.pipeline.conftest import url_of
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import events
from tests.support.offline import Row, decoded, definitions, make_log, messages, plain


def load(spark: SparkSession, where: dict[str, str], **options: Any) -> DataFrame:
    return spark.read.format("penstock").options(**where, **options).load()


def rows(frame: DataFrame) -> list[Row]:
    return plain(frame.toArrow())


def test_every_event_is_a_row_with_all_its_columns(spark: SparkSession, past: Broker, where: dict[str, str]) -> None:
    frame = load(spark, where, partitionBytes=40_000)
    assert tuple(frame.columns) == COLUMNS
    assert frame.rdd.getNumPartitions() > 2
    assert rows(frame) == decoded(past.data)


def test_columns_and_filters_say_what_is_read(spark: SparkSession, past: Broker, where: dict[str, str]) -> None:
    frame = load(spark, where, columns="state,queue", queue="hopeless,kept", state="FS")
    assert frame.dtypes == [("state", "string"), ("queue", "string")]
    assert rows(frame) == [
        {"state": row["state"], "queue": row["queue"]}
        for row in decoded(past.data)
        if row["queue"] in ("hopeless", "kept") and row["state"] in "FS"
    ]


PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_conditions_of_a_query_give_the_same_rows_pushed_down_or_not(
    spark: SparkSession, past: Broker, enabled: str
) -> None:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, enabled)
    try:
        frame = load(spark, {"path": str(past.data)}, columns="offset,state,queue")
        chosen = frame.where("state in ('L', 'F') and queue = 'hopeless' and offset > 20 and offset <= 200")
        nothing = frame.where("state = 'L' and state = 'Q'")
        found, none = rows(chosen), rows(nothing)
        left = chosen._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.set(PUSHDOWN, str(before))
    wanted = [row for row in decoded(past.data, ("offset", "state", "queue")) if 20 < row["offset"] <= 200]
    assert found == [row for row in wanted if row["state"] in "LF" and row["queue"] == "hopeless"]
    assert (found, none) == (found, [])
    assert ("hopeless" in left) == (enabled == "false"), "what is pushed down is not left to Spark"


def test_headers_are_a_map_and_a_queue_is_its_name(spark: SparkSession, past: Broker) -> None:
    frame = load(spark, {"path": str(past.data)}, state="L")
    kinds = dict(frame.dtypes)
    assert (kinds["headers"], kinds["queue"], kinds["queue_number"]) == ("map<string,binary>", "string", "int")
    traced = frame.where("headers['x-trace-id'] is not null").selectExpr("cast(headers['x-trace-id'] as string)")
    assert {row[0] for row in traced.collect()} == {"00000000-0000-4000-8000-000000000000"}
    moved = load(spark, {"path": str(past.data)}, state="E").where("to_queue_number is not null")
    assert {row["to_queue"] for row in moved.collect()} == {"dead", "rotten"}


NOBODY = "http://127.0.0.1:9"


def last_lines(error: pytest.ExceptionInfo[PySparkException]) -> str:
    """What Spark prints, without its own code and what it tells of a stream behind it."""
    return str(error.value).partition("=== Streaming Query ===")[0].replace("SQLSTATE: 38000", "").strip()


def test_an_unreachable_broker_is_named_in_the_last_line(spark: SparkSession) -> None:
    said = f"penstock.errors.BrokerError: {NOBODY} cannot be reached: Connection refused"
    with pytest.raises(PySparkException) as error:
        load(spark, {"url": NOBODY}).collect()
    assert last_lines(error).endswith(said)
    with pytest.raises(PySparkException) as error:
        spark.sql("select 'x' as body").write.format("penstock").options(url=NOBODY, queue="q").mode("append").save()
    assert last_lines(error).endswith(said)
    assert len(last_lines(error).splitlines()) <= 5


def test_a_missing_token_is_named_in_the_last_line(spark: SparkSession, start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret")
    said = f"BrokerError: {url_of(broker)} requires a token: set the option token"
    with pytest.raises(PySparkException) as error:
        load(spark, {"url": url_of(broker)}).collect()
    assert said in last_lines(error).splitlines()[-1]
    writer = spark.sql("select 'x' as body").write.format("penstock").options(url=url_of(broker), topics="a")
    with pytest.raises(PySparkException) as error:
        writer.mode("append").save()
    assert said in last_lines(error).splitlines()[-1]
    with pytest.raises(PySparkException) as error:
        writer.option("token", "wrong").mode("append").save()
    assert "refuses the token" in last_lines(error).splitlines()[-1]


def test_offsets_bound_what_is_read(spark: SparkSession, past: Broker, where: dict[str, str]) -> None:
    frame = load(spark, where, startingOffset=20, endingOffset=45, columns="offset,state,consumer")
    expected = [row for row in decoded(past.data, ("offset", "state", "consumer")) if 20 <= row["offset"] < 45]
    assert rows(frame) == expected == rows(frame)
    assert load(spark, where, startingOffset="latest").count() == 0


def test_times_bound_what_is_read(spark: SparkSession, past: Broker, where: dict[str, str]) -> None:
    every = decoded(past.data, ("offset", "time"))
    first, last = every[len(every) // 3]["time"] + 1, every[len(every) // 2]["time"] + 1
    expected = [row for row in every if first <= row["time"] < last]
    bounds = {"startingOffset": written(first), "endingOffset": written(last)}
    assert rows(load(spark, where, **bounds, columns="offset,time")) == expected
    assert expected


def written(microseconds: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)).isoformat()


def test_a_schema_of_the_user_chooses_the_columns(spark: SparkSession, past: Broker) -> None:
    reader = spark.read.format("penstock").option("path", str(past.data))
    frame = reader.schema("sequence long, offset long").load()
    assert rows(frame) == decoded(past.data, ("sequence", "offset"))
    with pytest.raises(AnalysisException, match="column sequence has type bigint, not string"):
        reader.schema("sequence string").load().collect()


def test_another_reader_counts_the_same(spark: SparkSession, past: Broker, tmp_path: Path) -> None:
    """Spark writes Parquet, DuckDB counts in it, and the broker's own Event Log is counted line by line."""
    target = tmp_path / "events"
    load(spark, {"url": url_of(past)}, partitionBytes=100_000).write.parquet(str(target))
    asked = f"SELECT queue, state, count(*) FROM '{target}/*.parquet' GROUP BY ALL"
    with duckdb.connect() as connection:
        counted = {(queue, state): count for queue, state, count in connection.execute(asked).fetchall()}
    assert counted == Counter((event["queue"], event["state"]) for event in events(past))


def test_an_empty_log_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    assert spark.read.format("penstock").load(str(make_log(tmp_path))).count() == 0


def test_what_retention_has_removed_is_an_error_unless_told_otherwise(spark: SparkSession, tmp_path: Path) -> None:
    make_log(tmp_path, definitions(), *(messages(at, 10) for at in range(1, 200, 10)))
    paths = sorted((tmp_path / "log").iterdir())
    paths[0].unlink()
    where = {"path": str(tmp_path)}
    left = [row for row in decoded(tmp_path, ("offset", "state")) if row["offset"] >= int(paths[1].stem)]
    with pytest.raises(PySparkException, match=rf"offset 0 to {int(paths[1].stem) - 1} are past retention"):
        load(spark, where, startingOffset=0).collect()
    forgiving = load(spark, where, startingOffset=0, failOnDataLoss=False, columns="offset,state")
    assert rows(forgiving) == left == rows(load(spark, where, columns="offset,state"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"read": "queue"}, "path cannot be used with read=queue"),
        ({"startingOffset": "1000000"}, "offset 1000000 is past the end of the log"),
        ({"endingOffset": "1000000"}, "endingOffset 1000000 is past the end of the log"),
        ({"path": "/nowhere"}, "/nowhere is not a Penstock data directory"),
    ],
)
def test_a_wrong_option_ends_the_query(spark: SparkSession, past: Broker, options: dict[str, str], said: str) -> None:
    with pytest.raises(PySparkException, match=said):
        load(spark, {"path": str(past.data)} | options).collect()


def test_names_are_asked_for_once_in_a_process_and_are_not_in_every_task(start_broker: StartBroker) -> None:
    broker = start_broker()
    with Client(broker.url) as client:
        for number in range(100):
            client.queues.create(f"queue-{number}")
        client.publish("queue-7", "first")
        reader = EventReader(parse_options({"url": broker.url, "columns": "queue,state"}))
        (first,) = reader.partitions()
        client.queues.create("later")
        client.publish("later", "second")
    (second,) = EventReader(parse_options({"url": broker.url, "columns": "queue,state"})).partitions()
    assert len(pickle.dumps(second)) < 1000
    for part, queues in ((first, {"queue-7"}), (second, {"queue-7", "later"})):
        found = [row for rows in pickle.loads(pickle.dumps(reader)).read(part) for row in rows.to_pylist()]
        assert {row["queue"] for row in found} == queues
    nobody = parse_options({"url": "http://127.0.0.1:1"})  # It is not asked again.
    assert "later" in names_here(nobody, second.needed)[0].queues.values()
