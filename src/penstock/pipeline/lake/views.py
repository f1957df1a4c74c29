"""What a reader of the lake sees: each table with its parts merged."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.files import read
from penstock.pipeline.lake.recipes import RECIPES
from penstock.pipeline.lake.tables import TABLES, parts_table


def view(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """A table as it is now: what comes later is in the next one. Raises `LakeError` where there is no lake."""
    lake.origin()
    table = TABLES[name]
    recipe = RECIPES[table]
    return recipe.view(recipe.merge(read(spark, parts_table(lake, table))))


def register(spark: SparkSession, lake: Lake) -> None:
    """Every table under its name, for SQL."""
    for name in TABLES:
        view(spark, lake, name).createOrReplaceTempView(name)
