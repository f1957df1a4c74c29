"""Upgrades a lake of an older version: converts its table of events, and makes all other tables from that.

The new tables are made in a directory of their own, and put in place when they are complete. The next upgrade
finishes or restarts one that was interrupted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from penstock.pipeline.lake.batch import NOTHING, Batch
from penstock.pipeline.lake.compaction import rebuild
from penstock.pipeline.lake.directory import LAKE_FORMAT, PARTS, Lake, Origin
from penstock.pipeline.lake.files import ask, write_files
from penstock.pipeline.lake.recipes import RECIPES
from penstock.pipeline.lake.tables import EVENTS, TABLES, parts_table
from penstock.pipeline.source.columns import COLUMNS, convert
from penstock.pipeline.source.log import Extent
from penstock.pipeline.source.rows import spark_schema
from penstock.storage.arrow.columns import COLUMNS as LOG_COLUMNS
from penstock.storage.arrow.names import Names
from penstock.storage.directory import sync, write_durably

_NEW, _OLD, _COMPLETE = "_upgrade", "_before-upgrade", "complete"


def upgrade(spark: SparkSession, lake: Lake, say: Callable[[str], None]) -> bool:
    """Rewrite the tables of an older lake. Returns false if the lake already has the current format."""
    origin = lake.origin_of_any_format()
    if origin.format >= LAKE_FORMAT:
        return False
    say(f"upgrading {lake.path} from format {origin.format} to {LAKE_FORMAT}: all tables are rewritten")
    new = Lake(lake.path / _NEW)
    if not (new.path / _COMPLETE).exists():
        shutil.rmtree(new.path, ignore_errors=True)
        new.path.mkdir()
        new.open_for([Extent(origin.log, 0, 0, 0, 0)])
        _rewrite_events(spark, lake, new)
        for table in TABLES.values():
            if table is not EVENTS:
                say(f"{table.name}: {rebuild(spark, new, table):,} rows")
        write_durably(new.path / _COMPLETE, b"")
    _put_in_place(lake, new)
    write_durably(lake.path / "penstock.json", msgspec.json.encode(Origin(LAKE_FORMAT, (origin.log,))) + b"\n")
    for folder in (_NEW, _OLD):
        shutil.rmtree(lake.path / folder, ignore_errors=True)
    say("the lake is upgraded")
    return True


def _rewrite_events(spark: SparkSession, lake: Lake, new: Lake) -> None:
    origin = lake.origin_of_any_format()
    path = lake.path / EVENTS.name
    delta = DeltaTable(str(path))
    target = parts_table(new, EVENTS)
    target.make()
    files = delta.file_uris()
    if not files:
        return
    old = spark.read.option("basePath", str(path)).parquet(*files)
    events = _renamed(old.select(*LOG_COLUMNS)) if origin.format == 1 else old.withColumn("shard", f.lit(0))
    facts = ask(events)
    assert facts is not None, "files without rows are not committed"
    batch = Batch(events, facts.covered, events, NOTHING, facts.newest)
    write_files(EVENTS, target, RECIPES[EVENTS].parts(batch, NOTHING))
    first, end = facts.covered[0]
    reached = delta.transaction_version(origin.names[0]) or end
    target.append(origin, {0: (first, reached)}, {"upgraded": "true"})


def _renamed(old: DataFrame) -> DataFrame:
    """Events of format 1."""
    numbers = old.where("queue_name is not null").select("queue", "queue_name").distinct().collect()
    queues = {row["queue"]: row["queue_name"] for row in numbers}

    def rename(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = Names(queues=queues)
        return (convert(batch, COLUMNS, names) for batch in batches)

    return old.mapInArrow(rename, spark_schema(COLUMNS))


def _put_in_place(lake: Lake, new: Lake) -> None:
    """Move each table into place once, even if this is interrupted and repeated."""
    (lake.path / _OLD).mkdir(exist_ok=True)
    for name in (*TABLES, PARTS):
        if (new.path / name).exists():
            if (lake.path / name).exists():
                (lake.path / name).rename(lake.path / _OLD / name)
            (new.path / name).rename(lake.path / name)
    sync(lake.path)
