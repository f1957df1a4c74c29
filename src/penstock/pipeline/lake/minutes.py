"""Makes the tables `queue_minutes` and `leases` with Spark."""

from __future__ import annotations

from datetime import timedelta

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from penstock.limits import LEASE_DAYS_MAX
from penstock.model.kinds import Kind
from penstock.pipeline.lake.batch import Batch, count_if, with_departures
from penstock.pipeline.lake.conditions import (
    DELIVERS,
    ENDS_FOR_ALL,
    LEAVES,
    OF_LEASES,
    OF_RECEIVERS,
    RANK,
    REMOVES,
    SETTLES,
    kind_is,
    state_is,
)
from penstock.pipeline.lake.delta import PARTITION, Offsets
from penstock.pipeline.lake.tables import COUNTED, HISTOGRAMS, PERCENTILES, SUBDIVISION

_ALL = 1 << 40  # More messages than a queue holds.
_COUNTED = {
    "logged": "state = 'L'",
    "messages_in": "state = 'Q'",
    "messages_out": f"{state_is('KINX')} and not {OF_RECEIVERS}",
    "deliveries": DELIVERS,
    "confirmations": "state = 'S'",
    "retries": "state = 'R'",
    "dead": "state = 'E'",
    "expired": "state = 'Z'",
    "deleted": f"state = 'D' and sequence is not null and not {kind_is(Kind.SENT)}",
    "unchanged": "state = 'U'",
    "invalid": "state = 'I'",
    "not_interested": "state = 'N'",
    "gone": f"{LEAVES} and state <> 'U' and sequence is not null",
}
_MINUTE = "date_trunc('minute', time)"
assert tuple(_COUNTED) == (*COUNTED, "gone"), "counts and columns differ"


def make_minutes(batch: Batch, since: Offsets) -> DataFrame:
    waited = f"if({DELIVERS} and receives = 1, greatest(unix_micros(time) - unix_micros(created), 0L), null)"
    counts = {name: count_if(condition) + _beside(name) for name, condition in _COUNTED.items()}
    counted = _by_minute(with_departures(batch.since(since)), "wait", waited, counts)
    took = "greatest(unix_micros(time) - unix_micros(fetched), 0L)"
    settled = batch.later(_paired(batch), since).where(f"{SETTLES} and fetched is not null")
    parts = counted.unionByName(_by_minute(settled, "processing", took, {}), allowMissingColumns=True)
    return parts.withColumn(PARTITION, f.to_date("minute"))


def _beside(name: str) -> Column:
    """Added to a count: a removed queue takes all its messages with it."""
    return f.expr(f"count_if({REMOVES}) * {_ALL}L") if name == "gone" else f.lit(0)


def _by_minute(events: DataFrame, name: str, micros: str, counts: dict[str, Column]) -> DataFrame:
    """Counts for each queue and minute, and a histogram of a duration in microseconds."""
    keys = ("queue", "queue_number", "minute")
    timed = events.withColumn("minute", f.expr(_MINUTE)).withColumn("micros", f.expr(micros))
    shift = f"greatest(0, cast(floor(log2(micros)) as int) - {SUBDIVISION.bit_length() - 1})"
    bucket = f"cast({shift} * {SUBDIVISION} + shiftright(micros, {shift}) as int)"
    by_bucket = timed.withColumn("bucket", f.expr(bucket)).groupBy(*keys, "bucket")
    counted = by_bucket.agg(f.expr("count(*)").alias("n"), *[count.alias(each) for each, count in counts.items()])
    entries = "collect_list(struct(bucket, n)) filter (where bucket is not null)"
    return counted.groupBy(*keys).agg(
        f.expr(f"map_from_entries({entries})").alias(name), *[f.sum(each).alias(each) for each in counts]
    )


def merge_minutes(parts: DataFrame) -> DataFrame:
    added = "(bucket, one, other) -> coalesce(one, 0L) + coalesce(other, 0L)"
    merged = (
        f"aggregate(collect_list(%s), cast(map() as map<int, bigint>), (all, one) -> map_zip_with(all, one, {added}))"
    )
    return parts.groupBy(PARTITION, "queue_number", "minute").agg(
        f.max("queue").alias("queue"),
        *[f.sum(name).alias(name) for name in _COUNTED],
        *[f.expr(merged % name).alias(name) for name in HISTOGRAMS],
    )


def view_minutes(merged: DataFrame) -> DataFrame:
    """The documented columns. The depth is messages in minus messages gone, since the first event in the lake."""
    so_far = Window.partitionBy("queue_number").orderBy("minute").rowsBetween(Window.unboundedPreceding, 0)
    depth = f.greatest(f.sum(f.expr("messages_in - gone")).over(so_far), f.lit(0))
    quantiles = [
        f.expr(_quantile(name, percent)).alias(f"{name}_p{percent}_ms")
        for name in HISTOGRAMS
        for percent in PERCENTILES
    ]
    return merged.select("queue", "queue_number", "minute", *COUNTED, depth.alias("depth"), *quantiles, PARTITION)


def _quantile(histogram: str, percent: int) -> str:
    """The middle of the bucket that holds the quantile, in milliseconds; whole numbers, so that DuckDB gets the
    same."""
    total = f"aggregate(map_values({histogram}), 0L, (all, one) -> all + one)"
    rank = f"(({total} * {percent} + 99) div 100)"
    bucket = f"""aggregate(array_sort(map_entries({histogram})),
        named_struct('seen', 0L, 'bucket', cast(null as int)),
        (all, one) -> named_struct('seen', all.seen + one.value,
            'bucket', if(all.seen < {rank}, one.key, all.bucket)),
        all -> all.bucket)"""
    # `transform` over an array of one element serves as a variable.
    return f"transform(array({bucket}), bucket -> {_middle('bucket')} / 1000)[0]"


def _middle(bucket: str) -> str:
    """The middle of a bucket: its first value plus half of its width. Below 128 each bucket is one value."""
    shift = f"greatest(0, {bucket} div {SUBDIVISION} - 1)"
    first = f"shiftleft(cast({bucket} - {shift} * {SUBDIVISION} as bigint), cast({shift} as int))"
    return f"({first} + shiftright(shiftleft(1L, cast({shift} as int)), 1))"


def _paired(batch: Batch) -> DataFrame:
    """Deliveries and the events that end them, each with the time of the delivery before (`fetched`) and the letter
    that follows (`next`). Deliveries of earlier batches come from the table `leases`."""
    happened = batch.since(batch.leased_to).where(OF_LEASES)
    receiver = f"if({OF_RECEIVERS}, coalesce(consumer, ''), null) as receiver"
    facts = ("queue_number", "queue", "sequence", "shard", "offset", "state", "time", "consumer", "visible_at")
    before = batch.leases.withColumn("state", f.lit("F")).withColumnRenamed("fetched", "time")
    both = happened.selectExpr(*facts, receiver).unionByName(before)
    line = Window.partitionBy("queue_number", "sequence", "receiver").orderBy("offset", f.expr(RANK))
    fetched = f.last(f.expr("if(state = 'F', time, null)"), ignorenulls=True)
    return both.select(
        "*",
        fetched.over(line.rowsBetween(Window.unboundedPreceding, -1)).alias("fetched"),
        f.lead("state").over(line).alias("next"),
    )


_END = ("shard as end_shard", "offset as end", "time as end_time")
# A message may be moved away by an event in the shard that it goes to, whose offsets are others.
_IS_LATER = "if(end_shard = shard, end >= offset, end_time >= time)"


def make_leases(batch: Batch, _: Offsets) -> DataFrame:
    forgotten = batch.newest.date() - timedelta(days=LEASE_DAYS_MAX)
    last = _paired(batch).where("state = 'F' and next is null").drop("fetched")
    kept = last.where(f"coalesce(visible_at, time) > timestamp '{forgotten}'")
    events = with_departures(batch.since(batch.leased_to))
    alone = "state in ('I', 'N')"  # Such an outcome may end only one of several consumers' leases.
    ended = events.where(f"{ENDS_FOR_ALL} or {alone} and consumer is not null").selectExpr(
        *("queue_number as end_queue", "sequence as end_sequence", *_END, f"if({alone}, consumer, null) as by")
    )
    is_over = (
        f"queue_number = end_queue and sequence = end_sequence and {_IS_LATER} and (by is null or by = receiver)"
    )
    removed = batch.since(batch.leased_to).where(REMOVES).selectExpr("queue_number as end_queue", *_END)
    left = kept.join(ended, f.expr(is_over), "left_anti")
    left = left.join(f.broadcast(removed), f.expr(f"queue_number = end_queue and {_IS_LATER}"), "left_anti")
    return left.selectExpr(
        *("queue_number", "queue", "sequence", "receiver", "consumer", "shard", "offset"),
        *("time as fetched", "visible_at"),
    )
