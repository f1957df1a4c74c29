"""Reads and writes the files of a table with Spark, and summarises the events in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.pipeline.lake.delta import PARTITION, Covered, LakeFile, LakeTable
from penstock.pipeline.lake.tables import Table


class Range(NamedTuple):
    """A summary of the events of a batch."""

    rows: int
    covered: Covered
    newest: datetime
    keys: int  # Events with a key.


def read(spark: SparkSession, table: LakeTable, files: list[LakeFile] | None = None) -> DataFrame:
    """The rows of these files, or of all current files of the table."""
    found = table.files() if files is None else files
    return read_paths(spark, table.schema, table.uris(found), table.path)


def read_paths(spark: SparkSession, schema: pa.Schema, paths: Sequence[str], base: Path | None = None) -> DataFrame:
    """The rows of files. `base`: where directories of dates begin."""
    columns = from_arrow_schema(schema)
    if not paths:
        return spark.createDataFrame([], columns)
    reader = spark.read.schema(columns)
    return (reader.option("basePath", str(base)) if base else reader).parquet(*paths)


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
            statistics = {
                name: row_group.column(columns[name]).statistics for name in ("shard", "offset", "time", "key")
            }
            keys = row_group.num_rows - statistics["key"].null_count
            shard, offset = statistics["shard"], statistics["offset"]
            one = {shard.min: (offset.min, offset.max + 1)}
            covered = one if shard.min == shard.max else _covered(path, group)
            facts = _joined(facts, Range(row_group.num_rows, covered, statistics["time"].max, keys))
    return facts


def _covered(path: Path, group: int) -> Covered:
    """The offsets of a row group with events of several shards."""
    rows = pq.ParquetFile(path).read_row_group(group, columns=["shard", "offset"])
    found = rows.group_by("shard").aggregate([("offset", "min"), ("offset", "max")]).to_pylist()
    return {row["shard"]: (row["offset_min"], row["offset_max"] + 1) for row in found}


def ask(events: DataFrame) -> Range | None:
    """Summarise events that are not in files, with a query."""
    asked = ("count(*)", "min(offset)", "max(offset)", "unix_micros(max(time))", "count(key)")
    facts = None
    for row in events.groupBy("shard").agg(*map(f.expr, asked)).collect():
        newest = datetime.fromtimestamp(row[4] / 1e6, UTC)
        facts = _joined(facts, Range(row[1], {row[0]: (row[2], row[3] + 1)}, newest, row[5]))
    return facts


def _joined(one: Range | None, other: Range) -> Range:
    if one is None:
        return other
    covered = dict(one.covered)
    for shard, (first, end) in other.covered.items():
        before = covered.get(shard, (first, end))
        covered[shard] = min(before[0], first), max(before[1], end)
    return Range(one.rows + other.rows, covered, max(one.newest, other.newest), one.keys + other.keys)
