"""The tables of the lake for readers in Spark: the parts of each table are merged."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.files import read
from penstock.pipeline.lake.recipes import RECIPES
from penstock.pipeline.lake.tables import TABLES, parts_table


def view(spark: SparkSession, lake: Lake, name: str) -> DataFrame:
    """The current rows of a table; call it again to see later ones. Raises `LakeError` if there is no lake."""
    lake.origin()
    table = TABLES[name]
    recipe = RECIPES[table]
    merged = [RECIPES[each].merge(read(spark, parts_table(lake, each))) for each in (table, *recipe.beside)]
    return recipe.view(*merged)


def register(spark: SparkSession, lake: Lake) -> None:
    """Make every table available to SQL under its name."""
    for name in TABLES:
        view(spark, lake, name).createOrReplaceTempView(name)
