"""Adds offset and lag of a stream of events to the progress that Spark reports.

Spark does not support metrics of sources written in Python (`sources[].metrics` stays empty), but it can aggregate
the rows that pass: these figures are in `StreamingQueryProgress.observedMetrics["penstock"]`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

OBSERVED = "penstock"


def measured(events: DataFrame) -> DataFrame:
    """The same events, observed. They need the columns `offset` and `time`. With the column `shard`, `offset` is null
    for a batch of several shards: their offsets have no order."""
    highest = "max(offset)" if "shard" not in events.columns else "if(min(shard) = max(shard), max(offset), null)"
    lag_micros = "greatest(unix_micros(current_timestamp()) - unix_micros(time), 0)"
    return events.observe(
        OBSERVED,
        f.expr("count(*)").alias("events"),
        f.expr(highest).alias("offset"),
        f.expr(f"min({lag_micros} / 1e6D)").alias("lag_seconds"),
    )
