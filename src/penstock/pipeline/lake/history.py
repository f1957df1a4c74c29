"""Makes the tables `changes` and `object_history` with Spark.

Contents are compared in the order of time, over all shards, as the broker does. Within a shard, time orders events as
their offsets do.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from penstock.model.kinds import Kind
from penstock.pipeline.lake.batch import KEY_TEXT, Batch
from penstock.pipeline.lake.conditions import kind_is
from penstock.pipeline.lake.delta import PARTITION, Offsets
from penstock.pipeline.lake.tables import KEY, PLACE, VERSION

_HASH = "coalesce(lower(hex(digest)), sha2(body, 256))"
_LINE = ("time", "shard", "offset")


def _keyed(batch: Batch, since: Offsets, *kinds: Kind) -> DataFrame:
    return batch.since(since).where(f"state = 'L' and {kind_is(*kinds)} and object is not null and key is not null")


def make_changes(batch: Batch, since: Offsets) -> DataFrame:
    versions = _keyed(batch, since, Kind.LOGGED).selectExpr(*KEY, *list(VERSION)[:-1], f"{_HASH} as hash")
    # With several shards, a later batch may have a version of another shard that was in between.
    changed = versions if batch.shards > 1 else _changed(versions).drop("previous_hash")
    return changed.withColumn(PARTITION, f.to_date("time"))


def _changed(versions: DataFrame) -> DataFrame:
    """Only the versions whose content differs from the version before."""
    line = Window.partitionBy("object", "key").orderBy(*_LINE)
    with_previous = versions.withColumn("previous_hash", f.lag("hash").over(line))
    return with_previous.where("not hash <=> previous_hash")


def _numbered(parts: DataFrame) -> DataFrame:
    line = Window.partitionBy("object", "key").orderBy(*_LINE)
    numbered = _changed(parts).withColumn("version", f.row_number().over(line))
    return numbered.withColumn("previous_time", f.lag("time").over(line))


def view_changes(parts: DataFrame) -> DataFrame:
    return _numbered(parts).selectExpr(
        *("object", f"{KEY_TEXT} as key", "version", "time", "hash", "previous_hash", "previous_time"),
        *("queue", "queue_number", "sequence", "shard", "offset", PARTITION),
    )


def make_history(batch: Batch, since: Offsets) -> DataFrame:
    """How often each key was seen. What has changed, and when, is in `changes`."""
    unchanged = kind_is(Kind.UNCHANGED)
    return merge_history(
        _keyed(batch, since, Kind.LOGGED, Kind.UNCHANGED).selectExpr(
            *KEY, "1L as seen", f"if({unchanged}, 1L, 0L) as unchanged", "time as seen_at"
        )
    )


def merge_history(parts: DataFrame) -> DataFrame:
    return parts.groupBy(*KEY).agg(
        *[f.sum(name).alias(name) for name in ("seen", "unchanged")], f.max("seen_at").alias("seen_at")
    )


def view_history(merged: DataFrame, changes: DataFrame) -> DataFrame:
    """One row for each object and key."""
    seen = merged.groupBy("object", "key").agg(
        *[f.sum(name).alias(name) for name in ("seen", "unchanged")], f.max("seen_at").alias("last_seen")
    )
    versions = (
        _numbered(changes)
        .groupBy("object", "key")
        .agg(
            *[f.expr(f"max_by({name}, version)").alias(name) for name in ("hash", *PLACE, "shard")],
            f.expr("cast(max(version) as bigint)").alias("versions"),
            f.min("time").alias("first_seen"),
            f.max("time").alias("last_change"),
        )
    )
    return seen.join(versions, ["object", "key"], "left").selectExpr(
        *("object", f"{KEY_TEXT} as key", "hash", "coalesce(versions, 0L) as versions", "seen", "unchanged"),
        *("first_seen", "last_change", "last_seen", *PLACE, "shard"),
    )
