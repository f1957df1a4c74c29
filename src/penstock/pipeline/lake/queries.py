"""DuckDB queries that merge the parts of each table into what a reader sees. `recipes.py` does the same in Spark, and
a test compares the two."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.limits import CONSUMERS_SHOWN_MAX
from penstock.model.letters import ORDER
from penstock.pipeline.lake.tables import (
    ATTRIBUTES,
    CONTENT,
    COUNTED,
    ELSEWHERE,
    HOPS_MAX,
    PLACE,
    SUBDIVISION,
    TIMES,
)

_KEY = "coalesce(try(decode(key)), '0x' || lower(hex(key)))"


def _letter(moment: str) -> str:
    return f"nullif(substr('{ORDER}', ({moment} % 16)::INTEGER, 1), '')"


def _each(pattern: str, names: Iterable[str]) -> str:
    return ", ".join(pattern.format(name) for name in names)


# Content is joined only to messages that have none of their own, so no other bodies are read for it.
_MESSAGES = f"""
WITH RECURSIVE merged AS (
    SELECT date, queue_number, sequence,
        {_each("max({0}) AS {0}", ("shard", "last", "receives", "modified", "queue", *ELSEWHERE))},
        {_each("min({0}) AS {0}", TIMES)},
        {_each("any_value({0}) AS {0}", (*ATTRIBUTES, "expires_at", *CONTENT))}
    FROM messages_chosen WHERE sequence <> 0 GROUP BY ALL
),
removals AS (
    SELECT queue_number, min(gone) AS removed_at, max(last) AS removal
    FROM messages_parts WHERE sequence = 0 GROUP BY ALL
),
lives AS (
    SELECT merged.* REPLACE (coalesce(gone, removed_at) AS gone,
        if(gone IS NULL, coalesce(removal, last), last) AS last,
        if(gone IS NULL, coalesce(removed_at, modified), modified) AS modified)
    FROM merged LEFT JOIN removals USING (queue_number)
),
hands AS (
    SELECT date, queue_number, sequence, one.consumer AS consumer, min(one.fetched) AS fetched,
        min(one.confirmed) AS confirmed, max(one.outcome) AS outcome, sum(one.deliveries)::BIGINT AS deliveries
    FROM (SELECT date, queue_number, sequence, unnest(consumers) AS one FROM messages_chosen) GROUP BY ALL
),
lists AS (
    SELECT date, queue_number, sequence, list({{'consumer': consumer, 'fetched': fetched, 'confirmed': confirmed,
            'duration_ms': (epoch_us(confirmed) - epoch_us(fetched)) / 1000,
            'outcome': {_letter("outcome")}, 'deliveries': deliveries}}
        ORDER BY consumer NULLS FIRST)[:{CONSUMERS_SHOWN_MAX}] AS consumers
    FROM hands GROUP BY ALL
),
links AS (
    SELECT queue_number, sequence, max(origin_queue_number) AS origin_queue_number,
        max(origin_sequence) AS origin_sequence
    FROM messages_parts WHERE origin_queue_number IS NOT NULL GROUP BY ALL
),
ways AS (
    SELECT queue_number, sequence, origin_queue_number AS root_queue_number, origin_sequence AS root_sequence,
        1 AS hops
    FROM merged WHERE origin_queue_number IS NOT NULL
    UNION ALL
    SELECT ways.queue_number, ways.sequence, before.origin_queue_number, before.origin_sequence, hops + 1
    FROM ways JOIN links AS before
        ON before.queue_number = ways.root_queue_number AND before.sequence = ways.root_sequence
    WHERE hops < {HOPS_MAX}
),
roots AS (
    SELECT queue_number, sequence, arg_max(root_queue_number, hops) AS root_queue_number,
        arg_max(root_sequence, hops) AS root_sequence
    FROM ways GROUP BY ALL
),
contents AS (
    SELECT roots.queue_number, roots.sequence, {_each("parts.{0}", (*ATTRIBUTES, *CONTENT))}
    FROM roots JOIN messages_parts AS parts
        ON parts.queue_number = root_queue_number AND parts.sequence = root_sequence
    WHERE parts.body IS NOT NULL
),
documents AS (
    SELECT own.* EXCLUDE ({_each("{0}", (*ATTRIBUTES, *CONTENT))}),
        {_each("if(own.priority IS NULL, root.{0}, own.{0}) AS {0}", ATTRIBUTES)},
        coalesce(own.body, root.body) AS body, coalesce(own.key, root.key) AS key,
        coalesce(own.headers, if(own.entered IS NULL, NULL, root.headers)) AS headers
    FROM lives AS own LEFT JOIN contents AS root USING (queue_number, sequence)
)
SELECT queue, queue_number, sequence, shard, body AS message, content_type,
    list_filter(string_split(topics, chr(10)), lambda topic: topic <> '') AS topics,
    object, {_KEY} AS key, headers, try_cast(try(decode(headers['timestamp'])) AS TIMESTAMPTZ) AS timestamp,
    sender, priority, {_letter("last")} AS state,
    gone IS NULL AS queued,
    processed IS NOT NULL
        OR coalesce(len(list_filter(consumers, lambda one: one.confirmed IS NOT NULL)), 0) > 0 AS delivered,
    completed IS NOT NULL
        OR coalesce(len(list_filter(consumers, lambda one: one.outcome = 'S')), 0) > 0 AS success,
    gone IS NOT NULL AS archived, completed IS NOT NULL AS confirmed,
    created, entered, modified, consumed, processed, completed, failed, gone, expires_at,
    coalesce(receives, 0) AS receives,
    coalesce(len(list_filter(string_split(topics, chr(10)), lambda topic: topic <> '')), 0)::INTEGER AS topic_count,
    coalesce(len(list_filter(consumers, lambda one: one.outcome = 'S')), 0)::INTEGER AS confirmed_count,
    coalesce(consumers, []) AS consumers, {_each("{0}", ELSEWHERE)}, date
FROM documents LEFT JOIN lists USING (date, queue_number, sequence)
"""


def _histogram(name: str) -> str:
    """The quantiles of a histogram, from the cumulated counts of its buckets."""
    return f"""
    {name}_buckets AS (
        SELECT queue_number, minute, one.key AS bucket, sum(one.value) AS n
        FROM (SELECT queue_number, minute, unnest(map_entries({name})) AS one FROM queue_minutes_chosen) GROUP BY ALL
    ),
    {name}_ranks AS (
        SELECT queue_number, minute, bucket, sum(n) OVER (PARTITION BY queue_number, minute ORDER BY bucket) AS upto,
            sum(n) OVER (PARTITION BY queue_number, minute) AS total
        FROM {name}_buckets
    ),
    {name}_quantiles AS (
        SELECT queue_number, minute, {quantile(50)} AS {name}_p50_ms, {quantile(99)} AS {name}_p99_ms
        FROM {name}_ranks GROUP BY ALL
    )"""


def quantile(percent: int) -> str:
    """From ranked buckets, in milliseconds."""
    return f"{_middle(f'min(bucket) FILTER (upto >= (total * {percent} + 99) // 100)')} / 1000"


def _middle(bucket: str) -> str:
    shift = f"greatest(0, {bucket} // {SUBDIVISION} - 1)"
    return f"((({bucket} - {shift} * {SUBDIVISION})::BIGINT << {shift}) + ((1::BIGINT << {shift}) >> 1))"


_MINUTES = f"""
WITH counted AS (
    SELECT date, queue_number, minute, max(queue) AS queue, {_each("sum({0})::BIGINT AS {0}", (*COUNTED, "gone"))}
    FROM queue_minutes_chosen GROUP BY ALL
),
{_histogram("wait")}, {_histogram("processing")}
SELECT queue, queue_number, minute, {_each("{0}", COUNTED)},
    greatest(
        (coalesce(held, 0) + sum(messages_in - gone) OVER (PARTITION BY queue_number ORDER BY minute))::BIGINT, 0
    ) AS depth,
    wait_p50_ms, wait_p99_ms, processing_p50_ms, processing_p99_ms, date
FROM counted LEFT JOIN wait_quantiles USING (queue_number, minute)
    LEFT JOIN processing_quantiles USING (queue_number, minute)
    LEFT JOIN queue_minutes_before USING (queue_number)
"""

# Contents are compared in the order of time, over all shards.
_CHANGED = """
compared AS (
    SELECT *, lag(hash) OVER (PARTITION BY object, key ORDER BY time, shard, "offset") AS previous_hash
    FROM changes_parts
),
changed AS (
    SELECT *, (row_number() OVER line)::INTEGER AS version, lag(time) OVER line AS previous_time
    FROM compared WHERE hash IS DISTINCT FROM previous_hash
    WINDOW line AS (PARTITION BY object, key ORDER BY time, shard, "offset")
)"""

_CHANGES = f"""
WITH {_CHANGED}
SELECT object, {_KEY} AS key, version, time, hash, previous_hash, previous_time, queue, queue_number, sequence, shard,
    "offset", date
FROM changed
"""

_HISTORY = f"""
WITH {_CHANGED},
versions AS (
    SELECT object, key, {_each("arg_max({0}, version) AS {0}", ("hash", *PLACE, "shard"))},
        max(version)::BIGINT AS versions, min(time) AS first_seen, max(time) AS last_change
    FROM changed GROUP BY ALL
),
counted AS (
    SELECT object, key, sum(seen)::BIGINT AS seen, sum(unchanged)::BIGINT AS unchanged, max(seen_at) AS last_seen
    FROM object_history_parts GROUP BY ALL
)
SELECT object, {_KEY} AS key, hash, coalesce(versions, 0) AS versions, seen, unchanged, first_seen, last_change,
    last_seen, {_each("{0}", PLACE)}, shard
FROM counted LEFT JOIN versions USING (object, key)
"""

# For each table with a long history: which parts the query above merges if a published table has the others. Its rows
# stay, except for those of which there is something younger.
_TOUCHED = """
    SELECT queue_number, sequence FROM messages_young WHERE sequence <> 0
    UNION
    SELECT queue_number, sequence FROM messages_published
    WHERE queued AND queue_number IN (SELECT queue_number FROM messages_young WHERE sequence = 0)
"""
# Depths add up, so all minutes of a queue from the first younger one on are computed again.
_SINCE = "SELECT queue_number, min(minute) AS since FROM queue_minutes_young GROUP BY ALL"


class Continued(NamedTuple):
    """How a table goes on after what was published."""

    views: dict[str, str]  # What the query of the table needs, by name.
    published: str  # The published rows that are still right.


CONTINUED = {
    "messages": Continued(
        {
            "messages_touched": _TOUCHED,
            "messages_chosen": "FROM messages_parts SEMI JOIN messages_touched USING (queue_number, sequence)",
        },
        "messages_published ANTI JOIN messages_touched USING (queue_number, sequence)",
    ),
    "queue_minutes": Continued(
        {
            "queue_minutes_since": _SINCE,
            "queue_minutes_chosen": "SELECT parts.* FROM queue_minutes_parts AS parts JOIN queue_minutes_since"
            " USING (queue_number) WHERE minute >= since",
            "queue_minutes_before": "SELECT queue_number, sum(messages_in - gone) AS held FROM queue_minutes_parts"
            " JOIN queue_minutes_since USING (queue_number) WHERE minute < since GROUP BY ALL",
        },
        "queue_minutes_published LEFT JOIN queue_minutes_since USING (queue_number)"
        " WHERE since IS NULL OR minute < since",
    ),
}

# The same without anything published.
WHOLE = {
    "messages": {"messages_chosen": "FROM messages_parts"},
    "queue_minutes": {
        "queue_minutes_chosen": "FROM queue_minutes_parts",
        "queue_minutes_before": "SELECT NULL::INTEGER AS queue_number, 0 AS held WHERE false",
    },
}

# The query that merges the parts of each table, empty if it is not kept in parts.
VIEWS = {
    "events": "",
    "queue_minutes": _MINUTES,
    "leases": "",
    "messages": _MESSAGES,
    "changes": _CHANGES,
    "object_history": _HISTORY,
}

# The tables whose parts a query reads beside its own.
BESIDE = {"object_history": ("changes",)}
