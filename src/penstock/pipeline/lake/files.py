"""Reads and writes the files of a table with Spark, and summarises the events in them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.pipeline.lake.delta import PARTITION, LakeFile, LakeTable
from penstock.pipeline.lake.tables import Table


class Range(NamedTuple):
    """A summary of the events of a batch."""

    rows: int
    first: int
    end: int
    newest: datetime
    keys: int  # Events with a key.


def read(spark: SparkSession, table: LakeTable, files: list[LakeFile] | None = None) -> DataFrame:
    """The rows of these files, or of all current files of the table."""
    found = table.files() if files is None else files
    schema = from_arrow_schema(table.schema)
    if not found:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).option("basePath", str(table.path)).parquet(*table.uris(found))


def write_files(table: Table, target: LakeTable, rows: DataFrame, files_max: int = 0) -> None:
    """Stage rows for the next commit of `target`, in at most `files_max` files for each date; 0 means no limit."""
    columns = rows.select(*target.schema.names)
    if files_max:
        columns = columns.coalesce(files_max)
    ordered = columns.sortWithinPartitions(*([PARTITION] if table.by_date else []), *table.order)
    writer = ordered.write.mode("overwrite")
    if table.by_date:
        writer = writer.partitionBy(PARTITION)
    writer.parquet(str(target.stage()))


def read_footers(paths: list[Path]) -> Range | None:
    """Summarise files of events by their footers; None if there are no events."""
    facts = None
    for path in paths:
        metadata = pq.read_metadata(path)
        columns = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            offset = row_group.column(columns["offset"]).statistics
            newest = row_group.column(columns["time"]).statistics.max
            keys = row_group.num_rows - row_group.column(columns["key"]).statistics.null_count
            facts = _joined(facts, Range(row_group.num_rows, offset.min, offset.max + 1, newest, keys))
    return facts


def ask(events: DataFrame) -> Range | None:
    """Summarise events that are not in files, with a query."""
    row = events.selectExpr("count(*)", "min(offset)", "max(offset)", "unix_micros(max(time))", "count(key)").first()
    assert row is not None
    if not row[0]:
        return None
    return Range(row[0], row[1], row[2] + 1, datetime.fromtimestamp(row[3] / 1e6, UTC), row[4])


def _joined(one: Range | None, other: Range) -> Range:
    if one is None:
        return other
    ends = (min(one.first, other.first), max(one.end, other.end), max(one.newest, other.newest))
    return Range(one.rows + other.rows, *ends, one.keys + other.keys)
