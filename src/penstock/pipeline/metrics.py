"""How far a stream of events is, in the progress that Spark reports of its query.

Spark has no metrics of sources in Python (`sources[].metrics` stays empty), but aggregates rows on their way: what is
observed here is in `StreamingQueryProgress.observedMetrics["penstock"]`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

OBSERVED = "penstock"


def measured(events: DataFrame) -> DataFrame:
    """The same events. They need the columns `offset` and `time`."""
    behind = "greatest(unix_micros(current_timestamp()) - unix_micros(time), 0)"
    return events.observe(
        OBSERVED,
        f.expr("count(*)").alias("events"),
        f.expr("max(offset)").alias("offset"),
        f.expr(f"min({behind} / 1e6D)").alias("lag_seconds"),
    )
