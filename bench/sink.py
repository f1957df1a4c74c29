"""How fast Spark writes into a queue, every row once: `python -m bench.sink`.

Spark generates rows of 200 bytes and writes them to one queue of a broker on the same machine: as one batch job, and
as a stream of batches. A further run writes them to Spark's noop sink, to measure what generating the rows takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.table import Table

from bench import machine, report
from bench.spark import seconds, session

ROWS = 1_000_000
BATCHES = 4
ROUNDS = 2
BODY_BYTES = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--master", default="local[*]")
    parser.add_argument("--scratch", type=machine.scratch, default=Path(__file__).parent / "scratch")
    asked = parser.parse_args()
    asked.scratch.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sink-", dir=asked.scratch))
    try:
        with broker(folder / "data") as url:
            found = measure(folder, url, asked.rows, asked.rounds, asked.master)
        facts = {"machine": machine.facts(folder), "master": asked.master, "rows": asked.rows, **found}
    finally:
        shutil.rmtree(folder)
    tell(found)
    name = "sink" if asked.rows == ROWS else "sink-partial"
    report.write_json(Path(__file__).parent / f"{name}.json", facts)


@contextmanager
def broker(data: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "penstock.cli", "serve", "--data", str(data)]
    command += ["--http", "127.0.0.1:0", "--lines", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            told = json.loads(line)
            if told["event"] == "listening":
                yield f"http://{told['http']}"
                break
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


def measure(folder: Path, url: str, rows: int, rounds: int, master: str) -> dict[str, float]:
    spark = session(master)
    try:
        frame = made(spark, rows)
        best = dict.fromkeys(("nowhere", "batch", "stream"), float("inf"))
        for number in range(rounds):
            best["nowhere"] = min(best["nowhere"], seconds(lambda: frame.write.format("noop").mode("append").save()))
            queue = make_queue(url, f"batch-{number}")
            writer = frame.write.format("penstock").options(url=url, queue=queue).mode("append")
            best["batch"] = min(best["batch"], seconds(writer.save))
            queue = make_queue(url, f"stream-{number}")
            best["stream"] = min(best["stream"], stream(spark, folder / str(number), url, queue, rows))
            for each in (f"batch-{number}", queue):
                assert messages(url, each) == rows, f"{each} should hold every row once"
    finally:
        spark.stop()
    return {f"{name}_rows_per_second": rows / taken for name, taken in best.items()}


def made(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(rows).selectExpr(f"lpad(cast(id as string), {BODY_BYTES}, 'x') as body")


def stream(spark: SparkSession, folder: Path, url: str, queue: str, rows: int) -> float:
    """The seconds of all batches. Spark reads the rows from Parquet files, one for each batch."""
    made(spark, rows).repartition(BATCHES).write.parquet(str(folder / "rows"))
    read = spark.readStream.schema("body string").option("maxFilesPerTrigger", 1).parquet(str(folder / "rows"))
    writer = read.writeStream.format("penstock").options(url=url, queue=queue)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    query = writer.start()
    query.awaitTermination()
    return sum(batch.batchDuration for batch in query.recentProgress if batch.numInputRows) / 1000


def make_queue(url: str, name: str) -> str:
    ask("PUT", f"{url}/v1/queues/{name}")
    return name


def messages(url: str, queue: str) -> int:
    told: int = ask("GET", f"{url}/v1/queues/{queue}")["status"]["messages"]
    return told


def ask(method: str, url: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method)) as answer:
        return json.loads(answer.read())


def tell(found: dict[str, float]) -> None:
    table = Table("figure", "rows/s", title="Spark writes into a queue")
    for name, value in found.items():
        table.add_row(name.replace("_", " ").removesuffix(" rows per second"), f"{value:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
