"""What a reader of the lake sees: each table with its parts merged."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.lake import Lake
from penstock.pipeline.stream import lake_table, read
from penstock.pipeline.tables import TABLES


def view(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """A table as it is now: what comes later is in the next one. Raises `LakeError` where there is no lake."""
    lake.origin()
    table = TABLES[name]
    return table.view(table.merge(read(spark, lake_table(lake, table))))


def register(spark: SparkSession, lake: Lake) -> None:
    """Every table under its name, for SQL."""
    for name in TABLES:
        view(spark, lake, name).createOrReplaceTempView(name)
