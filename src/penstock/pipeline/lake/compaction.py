"""Merges consecutive parts of a table into fewer and larger files, and removes old files.

While the stream runs, sixteen neighbours of about the same size become one file, so each row is rewritten once every
time the table grows sixteenfold; files that are large enough stay as they are. `everything` merges all files of a
date.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil

from pyspark.sql import DataFrame, SparkSession

from penstock.errors import LakeError
from penstock.limits import (
    LAKE_FILE_BYTES,
    LAKE_FILES_MIN,
    LAKE_VACUUM_HOURS,
)
from penstock.pipeline.lake.batch import NOTHING, Batch
from penstock.pipeline.lake.delta import LakeFile, LakeTable, after, by_date_and_range
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.files import ask, read, read_paths, write_files
from penstock.pipeline.lake.initial_state import initial_files, initial_state, stage_initial_rows
from penstock.pipeline.lake.publication import public_table, publish
from penstock.pipeline.lake.recipes import RECIPES
from penstock.pipeline.lake.tables import EVENTS, LEASES, TABLES, Table, parts_table

logger = logging.getLogger(__name__)

_STAGING = "_compacting"
_SMALL_BYTES = 256 << 10

Unit = list[LakeFile]  # The files of one date and the same batches.


def compact(spark: SparkSession, lake: Lake, table: Table, *, everything: bool = False) -> int:
    """Merge files of a table. Returns how many fewer there are."""
    target = parts_table(lake, table, _STAGING)
    if table.whole or not target.exists():
        return 0
    before = 0
    after = 0
    for units in by_date_and_range(target.files()).values():
        for run in [units] if everything else _runs(units):
            files = [file for unit in run for file in unit]
            if len(files) > 1:
                before += len(files)
                after += len(_merge(spark, table, target, files))
    return before - after


def rebuild(spark: SparkSession, lake: Lake, table: Table) -> int:
    """Make a table again from the table of events. Returns how many rows it has."""
    if table is EVENTS:
        raise LakeError(
            "the table events cannot be rebuilt: the other tables are made from it, "
            "and the log may no longer have its events"
        )
    origin = lake.origin()
    archive = parts_table(lake, EVENTS)
    target = parts_table(lake, table)
    target.make()
    old, reached = target.files(), archive.reached(origin)
    target.stage()
    began, events = initial_state(lake), read(spark, archive)
    if facts := ask(events):
        recipe, since = RECIPES[table], began.offsets if began else NOTHING
        leases, shards = initial_leases(spark, lake), len(origin.names)
        batch = Batch(events, facts.covered, leases, since, facts.newest, shards)
        write_files(table, target, recipe.merge(recipe.parts(batch, NOTHING)))
        reached = after(reached, facts.covered)
    if table is not LEASES or not facts:
        stage_initial_rows(lake, table, target)
    added = target.replace(old, origin, reached, {"rebuilt": "true"})
    publish(lake, table, everything=True)
    return sum(file.rows for file in added)


def initial_leases(spark: SparkSession, lake: Lake) -> DataFrame:
    """The deliveries that were under way when the first event of the lake happened."""
    return read_paths(spark, LEASES.schema, [str(path) for path in initial_files(lake, LEASES)])


def vacuum(lake: Lake, hours: float = LAKE_VACUUM_HOURS) -> int:
    """Remove files that left their table more than `hours` ago. Returns how many."""
    tables = [parts_table(lake, table, _STAGING) for table in TABLES.values()]
    tables += [public_table(lake, table) for table in TABLES.values() if table.in_parts]
    return sum(table.vacuum(hours) for table in tables if table.exists())


def _runs(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Neighbours of the same size class, if there are enough to merge."""
    for size, group in groupby(units, key=_size_class):
        run = list(group)
        if size is not None and len(run) >= LAKE_FILES_MIN:
            yield run


def _size_class(unit: Unit) -> int | None:
    """A class for sizes that differ less than sixteenfold; None if the unit is large enough."""
    size = sum(file.bytes for file in unit)
    if size >= LAKE_FILE_BYTES:
        return None
    return max(0, (size // _SMALL_BYTES).bit_length() // (LAKE_FILES_MIN.bit_length() - 1))


def _merge(spark: SparkSession, table: Table, target: LakeTable, files: list[LakeFile]) -> list[LakeFile]:
    count = ceil(sum(file.bytes for file in files) / LAKE_FILE_BYTES)
    write_files(table, target, RECIPES[table].merge(read(spark, target, files)), count)
    return target.compact(files, {"compacted": str(len(files))})
