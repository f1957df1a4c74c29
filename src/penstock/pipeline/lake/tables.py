"""The tables of the lake: their names, the columns that are stored, and how they are kept. Nothing here needs Spark.

Most tables are kept in parts: each batch of the stream appends rows made from its own events, and reads nothing from
the table. Parts of one key are merged when they are read, and when files are compacted. In `recipes.py`, Spark makes
and merges parts; in `queries.py`, DuckDB merges them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from penstock.pipeline.lake.delta import PARTITION, LakeTable
from penstock.pipeline.lake.directory import PARTS, Lake
from penstock.pipeline.source.columns import COLUMNS, HEADERS, TIME, arrow_schema


class Table(NamedTuple):
    """One table and how it is stored."""

    name: str
    what: str
    schema: pa.Schema
    order: tuple[str, ...]  # The order of the rows in a file.
    in_parts: bool = True  # Stored rows must be merged for readers.
    keyed: bool = False  # Only messages with a key have rows.
    whole: bool = False  # Each batch replaces all rows.
    cumulative: bool = False  # The rows of a date depend on earlier dates.
    reaches_back: str = ""  # A condition in SQL: parts that meet it end what waits in their queue, of any date.

    @property
    def by_date(self) -> bool:
        return PARTITION in self.schema.names


def parts_table(lake: Lake, table: Table, staging: str = "_staging") -> LakeTable:
    """The table that batches are written to: the parts of a table, or the table itself if it is not kept in parts."""
    folder = PARTS if table.in_parts else ""
    return LakeTable(lake, table.name, table.schema, by_date=table.by_date, staging=staging, folder=folder)


_TEXT, _BYTES, _LONG, _INT = pa.utf8(), pa.binary(), pa.int64(), pa.int32()
PLACE = {"queue": _TEXT, "queue_number": _INT, "sequence": _LONG}
_DATE = {PARTITION: pa.date32()}

EVENTS = Table(
    "events",
    "every event, as it is in the log",
    pa.schema([*arrow_schema(COLUMNS), *pa.schema(_DATE)]),
    order=("queue_number", "offset"),
    in_parts=False,
)

# Stored with the event of entering a queue, unless the message was moved there.
ATTRIBUTES = {**dict.fromkeys(("content_type", "sender", "object", "topics"), _TEXT), "priority": _LONG}
# Stored once in the log, however many queues the message enters.
CONTENT = {"body": _BYTES, "key": _BYTES, "headers": HEADERS, "digest": _BYTES}
FACTS: dict[str, Any] = {**ATTRIBUTES, "expires_at": TIME, **CONTENT}
# When each of these first happened.
TIMES = dict.fromkeys(("created", "entered", "consumed", "processed", "completed", "failed", "gone"), TIME)
ELSEWHERE = {f"{whence}_{name}": kind for whence in ("origin", "moved") for name, kind in PLACE.items()}
_CONSUMER = {"consumer": _TEXT, "fetched": TIME, "confirmed": TIME, "outcome": _LONG, "deliveries": _LONG}
HOPS_MAX = 8  # How many moves are followed back to find the content of a message.

MESSAGES = Table(
    "messages",
    "one row for each message in each queue: its content, state, times and consumers",
    pa.schema(
        {
            **PLACE,
            "shard": _INT,
            "last": _LONG,
            "receives": _LONG,
            "modified": TIME,
            **TIMES,
            **FACTS,
            **ELSEWHERE,
            "consumers": pa.list_(pa.struct(_CONSUMER)),
            **_DATE,
        }
    ),
    order=("queue_number", "sequence"),
    reaches_back="sequence = 0",  # The removal of a queue.
)

COUNTED = (
    *("logged", "messages_in", "messages_out", "deliveries", "confirmations", "retries", "dead", "expired"),
    *("deleted", "unchanged", "invalid", "not_interested"),
)
HISTOGRAMS = ("wait", "processing")  # Durations, as the number of values in each bucket, which can be added.
PERCENTILES = (50, 99)
SUBDIVISION = 64  # Buckets per power of two: the middle of a bucket is within 0.8 % of every value in it.

QUEUE_MINUTES = Table(
    "queue_minutes",
    "messages in and out of each queue in each minute, its depth, and how long messages waited and took",
    pa.schema(
        {
            "queue": _TEXT,
            "queue_number": _INT,
            "minute": TIME,
            **dict.fromkeys((*COUNTED, "gone"), _LONG),
            **dict.fromkeys(HISTOGRAMS, pa.map_(_INT, _LONG)),
            **_DATE,
        }
    ),
    order=("queue_number", "minute"),
    cumulative=True,
)

LEASES = Table(
    "leases",
    "deliveries that are not settled yet",
    pa.schema(
        {
            **PLACE,
            **dict.fromkeys(("receiver", "consumer"), _TEXT),
            "shard": _INT,
            "offset": _LONG,
            **dict.fromkeys(("fetched", "visible_at"), TIME),
        }
    ),
    order=("queue_number", "sequence"),
    in_parts=False,
    whole=True,
)

KEY = {"object": _TEXT, "key": _BYTES, "shard": _INT}
VERSION = {"offset": _LONG, "time": TIME, **PLACE, "hash": _TEXT}

CHANGES = Table(
    "changes",
    "each change of an object's content",
    pa.schema({**KEY, **VERSION, **_DATE}),
    order=tuple(KEY),
    keyed=True,
    cumulative=True,
)

OBJECT_HISTORY = Table(
    "object_history",
    "each object by key: the hash of its content, the number of its versions, and its last change",
    pa.schema(
        {
            **KEY,
            **dict.fromkeys(("seen", "unchanged"), _LONG),
            "seen_at": TIME,
        }
    ),
    order=tuple(KEY),
    keyed=True,
)

# In the order in which a batch writes them. `leases` comes after `queue_minutes`, which is made from the old leases.
TABLES = {table.name: table for table in (EVENTS, QUEUE_MINUTES, LEASES, MESSAGES, CHANGES, OBJECT_HISTORY)}

# What readers see of the tables that are kept in parts. The queries that merge these make the columns.
_QUANTILES = [f"{name}_p{percent}_ms" for name in HISTOGRAMS for percent in PERCENTILES]
DOCUMENTED: dict[str, tuple[str, ...]] = {
    "messages": (
        *(*PLACE, "shard", "message", "content_type", "topics", "object", "key", "headers", "timestamp", "sender"),
        *("priority", "state", "queued", "delivered", "success", "archived", "confirmed", "created", "entered"),
        *("modified", "consumed", "processed", "completed", "failed", "gone", "expires_at", "receives"),
        *("topic_count", "confirmed_count", "consumers", *ELSEWHERE, PARTITION),
    ),
    "queue_minutes": ("queue", "queue_number", "minute", *COUNTED, "depth", *_QUANTILES, PARTITION),
    "changes": (
        *("object", "key", "version", "time", "hash", "previous_hash", "previous_time", *PLACE, "shard", "offset"),
        PARTITION,
    ),
    "object_history": (
        *("object", "key", "hash", "versions", "seen", "unchanged", "first_seen", "last_change", "last_seen", *PLACE),
        "shard",
    ),
}
