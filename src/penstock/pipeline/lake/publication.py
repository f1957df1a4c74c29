"""The tables that others read: the rows of a table that is kept in parts, one for each key, in files of their own.

The pipeline publishes now and then, `compact` at once. A date is written again only if its parts have changed; where
a row depends on the dates before it, the later ones too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from math import ceil

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

from penstock.limits import LAKE_FILE_BYTES
from penstock.pipeline.lake.delta import PARTITION, LakeFile, LakeTable
from penstock.pipeline.lake.directory import Lake, Origin
from penstock.pipeline.lake.files import read, write_files
from penstock.pipeline.lake.recipes import RECIPES
from penstock.pipeline.lake.tables import Table, parts_table

_STAGING = "_publishing"


def public_table(lake: Lake, table: Table, schema: pa.Schema | None = None) -> LakeTable:
    """What others read. The schema is needed by who writes."""
    given = table.schema if schema is None else schema
    return LakeTable(lake, table.name, given, by_date=table.by_date, staging=_STAGING)


def publish(spark: SparkSession, lake: Lake, table: Table, *, everything: bool = False) -> int:
    """Bring what others read up to date; how many rows were written for it."""
    if not table.in_parts:
        return 0
    origin = lake.origin()
    parts = parts_table(lake, table)
    reached = parts.reached(origin)
    files = parts.files()
    recipe = RECIPES[table]
    rows = recipe.view(recipe.merge(read(spark, parts, files)))
    public = public_table(lake, table, _arrow_schema(rows))
    public.make()
    published = public.reached(origin)
    old = public.files()
    changed = files if everything else [file for file in files if file.end > published]
    if not changed:
        return 0
    if table.reaches_back and not read(spark, parts, changed).where(table.reaches_back).isEmpty():
        changed = files
    if table.by_date:
        dates = _dates(table, changed, files)
        rows = rows.where(f.col(PARTITION).isin(dates))
        files, old = [[file for file in each if file.date in dates] for each in (files, old)]
    return _write(table, public, rows, files, old, origin, reached)


def _write(
    table: Table,
    public: LakeTable,
    rows: DataFrame,
    files: Sequence[LakeFile],
    old: Sequence[LakeFile],
    origin: Origin,
    reached: int,
) -> int:
    write_files(table, public, rows, ceil(sum(file.bytes for file in files) / LAKE_FILE_BYTES))
    return sum(file.rows for file in public.publish(old, origin, reached, {"published": str(reached)}))


def _dates(table: Table, changed: Sequence[LakeFile], files: Sequence[LakeFile]) -> list[date]:
    dates = {file.date for file in changed if file.date}
    if table.cumulative:
        dates |= {file.date for file in files if file.date and file.date >= min(dates)}
    return sorted(dates)


def _arrow_schema(rows: DataFrame) -> pa.Schema:
    """Every column may be null: readers need not rely on what Spark knows of it."""
    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(rows.schema, timezone="UTC")])
