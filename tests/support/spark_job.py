"""A Spark job of its own process, as it may be killed: text files into a queue, a file a batch.

python -m tests.support.spark_job URL FOLDER MASTER [KEY=VALUE…]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession


def main(url: str, folder: Path, master: str, *more: str) -> None:
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.task.maxFailures": "20",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
        "spark.sql.files.maxPartitionBytes": "40000",
        "spark.sql.files.openCostInBytes": "0",
        **dict(each.split("=", 1) for each in more),
    }
    spark = SparkSession.builder.master(master).config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    failed, twin = folder / "failed", folder / "twin"
    has_twins = spark.conf.get("spark.speculation", "false") == "true"

    def once_in_vain(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The first task of the first batch hands over all of its rows, and fails. The second one does not end before
        Spark has started another for the same rows, and that one has handed them over, too."""
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 0 and not failed.exists():
            failed.touch()
            raise RuntimeError("in vain, as it was meant to be")
        if context.partitionId() == 1 and has_twins and context.attemptNumber():
            twin.touch()
        while context.partitionId() == 1 and has_twins and not twin.exists():
            time.sleep(0.05)

    read = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder / "files"))
    rows = read.withColumnRenamed("value", "body").mapInArrow(once_in_vain, "body string")
    writer = rows.writeStream.format("penstock").options(url=url, queue="work")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
