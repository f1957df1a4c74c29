"""A batch of the stream as recipes see it, and expressions that several recipes use."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from penstock.pipeline.lake.conditions import MOVES_BY_HAND

# A key is bytes; one that is not UTF-8 is shown in hexadecimal.
KEY_TEXT = "coalesce(try_validate_utf8(cast(key as string)), concat('0x', lower(hex(key))))"


class Batch(NamedTuple):
    """Events, and what was known before them."""

    events: DataFrame
    first: int  # The offset of the first.
    leases: DataFrame  # Deliveries that were under way at the offset `leased_to`.
    leased_to: int
    newest: datetime  # The time of the last event.

    def since(self, offset: int) -> DataFrame:
        # Not where it says nothing: Spark compiles a condition anew for every number in it.
        return self.events if offset <= self.first else self.events.where(f"offset >= {offset}")


def first_time(condition: str) -> Column:
    return f.expr(f"min(time) filter (where {condition})")


def count_if(condition: str) -> Column:
    return f.expr(f"count_if({condition})")


def with_departures(events: DataFrame) -> DataFrame:
    """A message that an operator moves enters a queue, which is an event, and leaves another, which is none."""
    here, there = ("queue", "queue_number", "sequence"), ("to_queue", "to_queue_number", "to_sequence")
    changed = dict(zip((*here, *there), (*there, *here), strict=True)) | {"state": "'M'"}
    columns = [f"{changed.get(name, name)} as {name}" for name in events.columns]
    return events.unionByName(events.where(MOVES_BY_HAND).selectExpr(*columns))
