"""How Spark makes each table: the parts of a batch, how parts are merged, and what a reader sees.

`merge` is associative, so parts may be merged any number of times. Only parts of neighbouring batches may be merged,
because some tables depend on their order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from penstock.pipeline.lake.batch import Batch
from penstock.pipeline.lake.delta import PARTITION, Offsets
from penstock.pipeline.lake.history import make_changes, make_history, merge_history, view_changes, view_history
from penstock.pipeline.lake.messages import make_messages, merge_messages, view_messages
from penstock.pipeline.lake.minutes import make_leases, make_minutes, merge_minutes, view_minutes
from penstock.pipeline.lake.tables import (
    CHANGES,
    EVENTS,
    LEASES,
    MESSAGES,
    OBJECT_HISTORY,
    QUEUE_MINUTES,
    TABLES,
    Table,
)

Change = Callable[[DataFrame], DataFrame]


def _same(frame: DataFrame) -> DataFrame:
    return frame


class Recipe(NamedTuple):
    """How one table is made."""

    parts: Callable[[Batch, Offsets], DataFrame]  # From the events of a batch after the offsets reached before.
    merge: Change = _same
    view: Callable[..., DataFrame] = _same  # From merged parts to what a reader sees.
    beside: tuple[Table, ...] = ()  # Tables whose merged parts that takes too.


def _events(batch: Batch, since: Offsets) -> DataFrame:
    return batch.since(since).withColumn(PARTITION, f.to_date("time"))


RECIPES = {
    EVENTS: Recipe(_events),
    QUEUE_MINUTES: Recipe(make_minutes, merge_minutes, view_minutes),
    LEASES: Recipe(make_leases),
    MESSAGES: Recipe(make_messages, merge_messages, view_messages),
    CHANGES: Recipe(make_changes, view=view_changes),
    OBJECT_HISTORY: Recipe(make_history, merge_history, view_history, (CHANGES,)),
}
assert list(RECIPES) == list(TABLES.values()), "each table has one recipe"
