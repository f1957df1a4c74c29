"""How fast Spark reads the log: `python -m bench.spark`.

One query over the same events, from the log and from Parquet files: how many events of each letter does each queue
have? The Parquet reader is Spark's own, in the JVM, and reads the two columns that the query needs. The log is
decoded in Python and handed over as Arrow, once with these two columns and once with eight. Then the same events
as a stream, about a million a batch, into a sink that discards them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from bench import lives, machine, report

EVENTS = 5_000_000
EVENTS_PER_BATCH = 1_000_000
ROUNDS = 3
TWO = "queue_number,state"
EIGHT = "offset,state,time,queue_number,queue,sequence,receives,consumer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--scratch", type=machine.scratch, default=Path(__file__).parent / "scratch")
    asked = parser.parse_args()
    asked.scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="spark-", dir=asked.scratch))
    try:
        found = measure(folder, asked.events, asked.rounds, asked.master)
        facts = {"machine": machine.facts(folder), "master": asked.master, "events": asked.events, **found}
    finally:
        shutil.rmtree(folder)
    tell(found)
    name = "spark" if asked.events == EVENTS else "spark-partial"
    report.write_json(Path(__file__).parent / f"{name}.json", facts)


def measure(folder: Path, events: int, rounds: int, master: str) -> dict[str, float]:
    lives.make(folder / "data", events // lives.EVENTS_PER_MESSAGE)
    spark = session(master)
    try:
        read = spark.read.format("penstock").option("path", str(folder / "data"))
        read.option("columns", EIGHT).load().write.parquet(str(folder / "parquet"))
        asked: dict[str, Callable[[], DataFrame]] = {
            "parquet": lambda: spark.read.parquet(str(folder / "parquet")),
            "two_columns": lambda: read.option("columns", TWO).load(),
            "eight_columns": lambda: read.option("columns", EIGHT).load(),
        }
        best = dict.fromkeys(asked, float("inf"))
        for _ in range(rounds):
            for name, frame in asked.items():
                best[name] = min(best[name], seconds(partial(ask, frame, events)))
        streamed = max(stream(spark, folder, events, number) for number in range(rounds))
    finally:
        spark.stop()
    found = {f"{name}_events_per_second": events / taken for name, taken in best.items()}
    relative = {f"{name}_to_parquet": best["parquet"] / best[name] for name in ("two_columns", "eight_columns")}
    return {**found, **relative, "streamed_events_per_second": streamed}


def session(master: str) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("penstock-bench")
    settings = {"ui.enabled": "false", "ui.showConsoleProgress": "false", "sql.shuffle.partitions": "2"}
    for name, value in settings.items():
        builder = builder.config(f"spark.{name}", value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def seconds(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def ask(frame: Callable[[], DataFrame], events: int) -> None:
    rows = frame().groupBy("queue_number", "state").count().collect()
    assert sum(row["count"] for row in rows) == events


def stream(spark: SparkSession, folder: Path, events: int, number: int) -> float:
    """Events per second of the batches, without the first one, which includes the start of the query."""
    records_max = EVENTS_PER_BATCH * 3 // lives.EVENTS_PER_MESSAGE
    frame = (
        spark.readStream.format("penstock")
        .option("path", str(folder / "data"))
        .option("columns", "offset,state,time,queue_number,sequence")
        .option("maxEventsPerTrigger", 3 * records_max)
        .load()
    )
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(folder / f"checkpoint-{number}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = [batch for batch in query.recentProgress if batch.numInputRows]
    assert sum(batch.numInputRows for batch in batches) == events
    rest = batches[1:] or batches
    return 1000 * sum(batch.numInputRows for batch in rest) / sum(batch.batchDuration for batch in rest)


def tell(found: dict[str, float]) -> None:
    table = Table("figure", "value", title="Spark reads the log")
    for name, value in found.items():
        table.add_row(name.replace("_", " "), f"{value:,.0f}" if value > 100 else f"{value:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
