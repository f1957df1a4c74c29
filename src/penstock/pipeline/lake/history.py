"""Makes the tables `changes` and `object_history` with Spark."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from penstock.model.kinds import Kind
from penstock.pipeline.lake.batch import KEY_TEXT, Batch
from penstock.pipeline.lake.conditions import kind_is
from penstock.pipeline.lake.delta import PARTITION, Offsets
from penstock.pipeline.lake.tables import KEY, PLACE, VERSION

_HASH = "coalesce(lower(hex(digest)), sha2(body, 256))"


def _versions(batch: Batch, since: Offsets) -> DataFrame:
    return _keyed(batch, since, Kind.LOGGED).selectExpr(*KEY, *list(VERSION)[:-1], f"{_HASH} as hash")


def _keyed(batch: Batch, since: Offsets, kind: Kind) -> DataFrame:
    return batch.since(since).where(f"state = 'L' and {kind_is(kind)} and object is not null and key is not null")


def make_changes(batch: Batch, since: Offsets) -> DataFrame:
    return _changed(_versions(batch, since)).withColumn(PARTITION, f.to_date("time")).drop("previous_hash")


def _changed(versions: DataFrame) -> DataFrame:
    """Only the versions whose content differs from the version before."""
    line = Window.partitionBy(*KEY).orderBy("offset")
    with_previous = versions.withColumn("previous_hash", f.lag("hash").over(line))
    return with_previous.where("not hash <=> previous_hash")


def view_changes(parts: DataFrame) -> DataFrame:
    line = Window.partitionBy(*KEY).orderBy("offset")
    numbered = _changed(parts).withColumn("version", f.row_number().over(line))
    previous = numbered.withColumn("previous_time", f.lag("time").over(line))
    return previous.selectExpr(
        *("object", f"{KEY_TEXT} as key", "version", "time", "hash", "previous_hash", "previous_time"),
        *("queue", "queue_number", "sequence", "shard", "offset", PARTITION),
    )


def make_history(batch: Batch, since: Offsets) -> DataFrame:
    version = f"struct({', '.join(VERSION)})"
    single = _versions(batch, since).selectExpr(
        *KEY,
        *(f"{version} as first", f"{version} as last", f"if(true, null, {version}) as changed"),
        *("0L as changes", "1L as seen", "0L as unchanged", "time as seen_at"),
    )
    same = _keyed(batch, since, Kind.UNCHANGED).selectExpr(
        *KEY, "0L as changes", "1L as seen", "1L as unchanged", "time as seen_at"
    )
    return merge_history(single.unionByName(same, allowMissingColumns=True))


def merge_history(parts: DataFrame) -> DataFrame:
    """Merge consecutive parts. If a part begins with other content than the one before ended with, that is a
    change."""
    line = Window.partitionBy(*KEY).orderBy("first.offset").rowsBetween(Window.unboundedPreceding, -1)
    before = f.last("last.hash", ignorenulls=True).over(line)
    joints = parts.withColumn("is_change", f.coalesce(before != f.col("first.hash"), f.lit(False)))
    return joints.groupBy(*KEY).agg(
        f.min("first").alias("first"),
        f.max("last").alias("last"),
        f.expr("sum(changes) + count_if(is_change)").alias("changes"),
        *[f.sum(name).alias(name) for name in ("seen", "unchanged")],
        f.max("seen_at").alias("seen_at"),
        f.expr("max(coalesce(changed, if(is_change, first, null)))").alias("changed"),
    )


def view_history(merged: DataFrame) -> DataFrame:
    """One row for each object and key. Where several shards have versions, the last change is the latest by time."""
    changed = merged.withColumn("change", f.expr("coalesce(changed, first)"))
    newest = "max_by(%s, struct(change.time, shard))"
    return (
        changed.groupBy("object", "key")
        .agg(
            *[
                f.expr(each)
                for each in (
                    f"{newest % 'last.hash'} as hash",
                    *("sum(changes + 1) as versions", "sum(seen) as seen", "sum(unchanged) as unchanged"),
                    *(
                        "min(first.time) as first_seen",
                        "max(change.time) as last_change",
                        "max(seen_at) as last_seen",
                    ),
                    *(f"{newest % f'change.{name}'} as {name}" for name in PLACE),
                    f"{newest % 'shard'} as shard",
                )
            ]
        )
        .withColumn("key", f.expr(KEY_TEXT))
    )
