"""A batch of the stream, and SQL expressions that several recipes share."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.pipeline.lake.conditions import MOVES_BY_HAND
from penstock.pipeline.lake.delta import Covered, Offsets

# A key is bytes; one that is not UTF-8 is shown in hexadecimal.
KEY_TEXT = "coalesce(try_validate_utf8(cast(key as string)), concat('0x', lower(hex(key))))"


class Batch(NamedTuple):
    """The events of a batch, and the deliveries that were under way before them."""

    events: DataFrame
    covered: Covered  # The offsets of the events.
    leases: DataFrame  # Deliveries that were under way when these offsets were reached.
    leased_to: Offsets
    newest: datetime  # The time of the last event.
    shards: int = 1  # Of the log.

    def since(self, reached: Offsets) -> DataFrame:
        return self.later(self.events, reached)

    def later(self, events: DataFrame, reached: Offsets) -> DataFrame:
        """Those of the events that are not among the offsets reached before the batch."""
        # Without a condition if it is always true: Spark compiles a new one for every number.
        if not reached or all(reached[shard] <= first for shard, (first, _) in self.covered.items()):
            return events
        return events.where(f"offset >= array({', '.join(f'{offset}L' for offset in reached)})[shard]")


NOTHING: Offsets = ()  # No offset was reached.


def first_time(condition: str) -> Column:
    return f.expr(f"min(time) filter (where {condition})")


def count_if(condition: str) -> Column:
    return f.expr(f"count_if({condition})")


def with_departures(events: DataFrame) -> DataFrame:
    """The events, and one more for every message that an operator moved: the log has no event of leaving a queue."""
    here, there = ("queue", "queue_number", "sequence"), ("to_queue", "to_queue_number", "to_sequence")
    changed = dict(zip((*here, *there), (*there, *here), strict=True)) | {"state": "'M'"}
    columns = [f"{changed.get(name, name)} as {name}" for name in events.columns]
    return events.unionByName(events.where(MOVES_BY_HAND).selectExpr(*columns))
