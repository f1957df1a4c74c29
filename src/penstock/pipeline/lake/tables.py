"""The tables of the lake: their names, the columns that are stored, and how they are kept. Nothing here needs Spark.

Most tables are kept in parts: each batch of the stream appends what it alone knows, and reads nothing for it. Parts
of one key are merged when they are read, and when files are compacted. `recipes.py` says how Spark makes and merges
parts; `queries.py` says how DuckDB merges them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from penstock.pipeline.lake.delta import PARTITION, LakeTable
from penstock.pipeline.lake.directory import PARTS, Lake
from penstock.pipeline.source.columns import COLUMNS, HEADERS, TIME, arrow_schema


class Table(NamedTuple):
    """One table: what is stored of it, and how."""

    name: str
    what: str
    schema: pa.Schema
    order: tuple[str, ...]  # The order of the rows in a file.
    in_parts: bool = True  # What is stored is not yet what a reader sees.
    keyed: bool = False  # Only messages with a key have rows in it.
    whole: bool = False  # A batch replaces what was there.
    cumulative: bool = False  # The rows of a date depend on earlier dates.
    reaches_back: str = ""  # A condition: parts that meet it change rows of any date.

    @property
    def by_date(self) -> bool:
        return PARTITION in self.schema.names


def parts_table(lake: Lake, table: Table, staging: str = "_staging") -> LakeTable:
    """Where the rows of a batch go: the parts of a table, or a table that readers see as it is."""
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

# What an event says of its message when the message enters a queue, unless it was moved there,
TOLD = {**dict.fromkeys(("content_type", "sender", "object", "topics"), _TEXT), "priority": _LONG}
# and what the log holds once, however many queues the message enters.
CONTENT = {"body": _BYTES, "key": _BYTES, "headers": HEADERS, "digest": _BYTES}
FACTS: dict[str, Any] = {**TOLD, "expires_at": TIME, **CONTENT}
# When each of these happened first.
TIMES = dict.fromkeys(("created", "entered", "consumed", "processed", "completed", "failed", "gone"), TIME)
ELSEWHERE = {f"{whence}_{name}": kind for whence in ("origin", "moved") for name, kind in PLACE.items()}
_CONSUMER = {"consumer": _TEXT, "fetched": TIME, "confirmed": TIME, "outcome": _LONG, "deliveries": _LONG}
HOPS_MAX = 8  # A message is followed back over this many moves to where its content is.

MESSAGES = Table(
    "messages",
    "one row for each message in each queue: its content, state, times and consumers",
    pa.schema(
        {
            **PLACE,
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
HISTOGRAMS = ("wait", "processing")  # How long something took: how many values each bucket has. Counts add up.
PERCENTILES = (50, 99)
SUBDIVISION = 64  # Buckets of an octave: the middle of one is within 0.8 % of everything in it.

QUEUE_MINUTES = Table(
    "queue_minutes",
    "what went into each queue and out of it in each minute, its depth, and how long it took",
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
    "deliveries that nobody has settled yet",
    pa.schema({**PLACE, "receiver": _TEXT, "consumer": _TEXT, "offset": _LONG, "fetched": TIME, "visible_at": TIME}),
    order=("queue_number", "sequence"),
    in_parts=False,
    whole=True,
)

KEY = {"object": _TEXT, "key": _BYTES}
VERSION = {"offset": _LONG, "time": TIME, **PLACE, "hash": _TEXT}

CHANGES = Table(
    "changes",
    "each time an object's content was another than before",
    pa.schema({**KEY, **VERSION, **_DATE}),
    order=tuple(KEY),
    keyed=True,
    cumulative=True,
)

OBJECT_HISTORY = Table(
    "object_history",
    "each object by its key: the hash of its content, how many versions it had, when it changed last",
    pa.schema(
        {
            **KEY,
            **dict.fromkeys(("first", "last", "changed"), pa.struct(VERSION)),
            **dict.fromkeys(("changes", "seen", "unchanged"), _LONG),
            "seen_at": TIME,
        }
    ),
    order=tuple(KEY),
    keyed=True,
)

# In the order in which a batch writes them: the next batch goes on from the leases, so they come after what is made
# from the old ones.
TABLES = {table.name: table for table in (EVENTS, QUEUE_MINUTES, LEASES, MESSAGES, CHANGES, OBJECT_HISTORY)}
