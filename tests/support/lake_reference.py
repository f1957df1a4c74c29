"""The tables of the lake as DuckDB makes them from the same events: another engine, and SQL written for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from tests.support.offline import as_spark

Row = dict[str, Any]

ORDER = "LUQFKRSINXEZDMB"
RECEIVERS = "kind IN (25, 26, 27, 36, 59, 60)"

_PREPARED = f"""
CREATE TABLE e AS
WITH every AS (
    FROM given
    UNION ALL
    SELECT * REPLACE (to_queue AS queue, to_sequence AS sequence, queue AS to_queue, sequence AS to_sequence,
        'M' AS letter, NULL AS queue_name) FROM given WHERE kind = 34
)
SELECT *, position(letter IN '{ORDER}') AS rank,
    (letter IN ('U', 'I', 'N', 'X', 'E', 'Z', 'D', 'M') OR letter = 'K') AND NOT {RECEIVERS} AND kind <> 4 AS leaves
FROM every;
CREATE TABLE removed AS SELECT queue, time AS removed_at FROM given WHERE kind = 4;
CREATE TABLE moves AS
    SELECT to_queue AS queue, to_sequence AS sequence, queue AS origin_queue, sequence AS origin_sequence
    FROM e WHERE letter = 'E' AND to_queue IS NOT NULL
    UNION
    SELECT queue, sequence, to_queue, to_sequence FROM e WHERE letter IN ('L', 'Q') AND to_queue IS NOT NULL
"""

_MESSAGES = """
WITH RECURSIVE way AS (
    SELECT queue, sequence, queue AS root_queue, sequence AS root_sequence
    FROM (SELECT DISTINCT queue, sequence FROM e WHERE sequence IS NOT NULL)
    UNION ALL
    SELECT way.queue, way.sequence, origin_queue, origin_sequence
    FROM way JOIN moves ON way.root_queue = moves.queue AND way.root_sequence = moves.sequence
),
hands AS (
    SELECT queue, sequence, consumer, min(time) FILTER (letter IN ('F', 'K')) AS fetched,
        min(time) FILTER (letter IN ('S', 'I', 'N')) AS confirmed,
        arg_max(letter, "offset") FILTER (letter IN ('S', 'I', 'N', 'K')) AS outcome,
        count(*) FILTER (letter IN ('F', 'K')) AS deliveries
    FROM e GROUP BY ALL
    HAVING count(*) FILTER (letter IN ('F', 'K', 'S', 'I', 'N')) > 0
),
lists AS (
    SELECT queue, sequence, count(*) FILTER (outcome = 'S') AS confirmed_count,
        list({'consumer': consumer, 'fetched': fetched, 'confirmed': confirmed, 'outcome': outcome,
            'deliveries': deliveries} ORDER BY consumer NULLS FIRST, fetched) AS consumers
    FROM hands GROUP BY ALL
),
alive AS (
    SELECT queue, sequence, max(queue_name) AS queue_name,
        arg_max(letter, "offset" * 100 + rank) FILTER (letter <> 'M') AS state,
        min(created) AS created, max(time) AS modified, min(time) FILTER (letter = 'Q') AS entered,
        min(time) FILTER (letter IN ('F', 'K')) AS consumed,
        min(time) FILTER (letter IN ('S', 'I', 'N')) AS processed,
        min(time) FILTER (letter = 'X') AS completed, min(time) FILTER (letter = 'E') AS failed,
        min(time) FILTER (leaves) AS gone,
        coalesce(max(receives) FILTER (NOT kind IN (25, 26, 27, 30, 31, 35, 36, 37, 59, 60)), 0) AS receives,
        max(expires_at) FILTER (letter = 'Q') AS expires_at,
        max(to_queue) FILTER (letter IN ('E', 'M')) AS moved_queue,
        max(to_sequence) FILTER (letter IN ('E', 'M')) AS moved_sequence,
        bool_or(letter IN ('S', 'X')) AS success, bool_or(letter IN ('S', 'I', 'N')) AS delivered
    FROM e WHERE sequence IS NOT NULL GROUP BY ALL
),
lives AS (
    SELECT * EXCLUDE (removed_at) REPLACE (
        if(gone IS NULL AND removed_at IS NOT NULL, 'D', state) AS state,
        if(gone IS NULL, coalesce(removed_at, modified), modified) AS modified,
        coalesce(gone, removed_at) AS gone)
    FROM alive LEFT JOIN removed USING (queue)
),
contents AS (
    SELECT way.queue, way.sequence, body AS message, e.key, headers, facts: {'mime_type': content_type,
        'object': object, 'sender': sender, 'priority': priority, 'topics': topics}
    FROM way JOIN e ON e.queue = root_queue AND e.sequence = root_sequence AND letter = 'L' AND body IS NOT NULL
),
own AS (
    SELECT queue, sequence, key AS own_key, headers AS own_headers, kind = 29 AS unchanged,
        own_facts: {'mime_type': content_type, 'object': object, 'sender': sender, 'priority': priority,
            'topics': topics}
    FROM e WHERE letter = 'L' OR (letter = 'Q' AND kind = 28)
),
documents AS (
    SELECT * REPLACE (coalesce(own_facts, facts) AS facts)
    FROM contents LEFT JOIN own USING (queue, sequence)
)
SELECT lives.*, gone IS NULL AS queued, gone IS NOT NULL AS archived, completed IS NOT NULL AS confirmed,
    origin_queue, origin_sequence, message, facts.mime_type, facts.object, facts.sender, facts.priority,
    coalesce(string_split(nullif(facts.topics, ''), chr(10)), []) AS topics, len(topics) AS topic_count,
    decode(coalesce(own_key, key)) AS key, if(unchanged, own_headers, headers) AS headers,
    coalesce(confirmed_count, 0) AS confirmed_count, coalesce(consumers, []) AS consumers
FROM lives LEFT JOIN moves USING (queue, sequence) LEFT JOIN lists USING (queue, sequence)
    LEFT JOIN documents USING (queue, sequence)
ORDER BY queue, sequence
"""

_MINUTES = """
WITH waits AS (
    SELECT queue, date_trunc('minute', time) AS minute, epoch_us(time) - epoch_us(created) AS wait
    FROM e WHERE letter IN ('F', 'K') AND receives = 1
),
leased AS (
    SELECT *, last_value(CASE WHEN letter = 'F' THEN epoch_us(time) END IGNORE NULLS) OVER (
        PARTITION BY queue, sequence, CASE WHEN kind IN (25, 26, 27, 36, 59, 60) THEN consumer END
        ORDER BY "offset", rank ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS fetched
    FROM e WHERE letter IN ('F', 'R', 'S', 'I', 'N', 'E', 'Z', 'D')
),
taken AS (
    SELECT queue, date_trunc('minute', time) AS minute, list(epoch_us(time) - fetched ORDER BY ALL) AS processing
    FROM leased WHERE letter IN ('S', 'I', 'N') AND fetched IS NOT NULL GROUP BY ALL
),
waited AS (SELECT queue, minute, list(wait ORDER BY wait) AS wait FROM waits GROUP BY ALL),
counted AS (
    SELECT queue, max(queue_name) AS queue_name, date_trunc('minute', time) AS minute,
        count(*) FILTER (letter = 'L') AS logged,
        count(*) FILTER (letter = 'Q') AS messages_in,
        count(*) FILTER (letter IN ('K', 'I', 'N', 'X') AND NOT kind IN (25, 26, 27, 36, 59, 60)) AS messages_out,
        count(*) FILTER (letter IN ('F', 'K')) AS deliveries,
        count(*) FILTER (letter = 'S') AS confirmations,
        count(*) FILTER (letter = 'R') AS retries,
        count(*) FILTER (letter = 'E') AS dead,
        count(*) FILTER (letter = 'Z') AS expired,
        count(*) FILTER (letter = 'D' AND kind <> 4) AS deleted,
        count(*) FILTER (kind = 4) AS removals,
        count(*) FILTER (letter = 'U') AS unchanged,
        count(*) FILTER (letter = 'I') AS invalid,
        count(*) FILTER (letter = 'N') AS not_interested,
        count(*) FILTER (leaves AND letter <> 'U') AS gone
    FROM e GROUP BY queue, minute
)
SELECT counted.* EXCLUDE (gone, removals),
    if(sum(removals) OVER (PARTITION BY queue ORDER BY minute) > 0, 0,
        CAST(sum(messages_in - gone) OVER (PARTITION BY queue ORDER BY minute) AS BIGINT)) AS depth,
    coalesce(wait, []) AS wait, coalesce(processing, []) AS processing
FROM counted LEFT JOIN waited USING (queue, minute) LEFT JOIN taken USING (queue, minute)
ORDER BY queue, minute
"""

_LEASES = """
SELECT queue, sequence, CASE WHEN kind = 25 THEN consumer END AS receiver, consumer, "offset", time AS fetched,
    visible_at
FROM e AS f
WHERE letter = 'F' AND queue NOT IN (SELECT queue FROM removed) AND NOT EXISTS (
    FROM e AS later
    WHERE later.queue = f.queue AND later.sequence = f.sequence
        AND (later."offset", later.rank) > (f."offset", f.rank)
        AND (later.letter IN ('Z', 'D', 'M') OR later.kind IN (22, 35, 37)
            OR CASE WHEN f.kind = 25
                THEN later.consumer = f.consumer AND (later.kind IN (25, 27, 36) OR later.letter IN ('I', 'N'))
                ELSE later.letter IN ('F', 'R', 'S', 'I', 'N', 'E')
                    AND later.kind NOT IN (25, 26, 27, 36, 59, 60) END))
"""

_CHANGES = """
WITH versions AS (
    SELECT object, key, "offset", time, queue, sequence, sha256(body) AS hash,
        lag(sha256(body)) OVER (PARTITION BY object, key ORDER BY "offset") AS previous_hash
    FROM e WHERE letter = 'L' AND kind = 16 AND object IS NOT NULL AND key IS NOT NULL
)
SELECT object, decode(key) AS key, row_number() OVER (PARTITION BY object, key ORDER BY "offset") AS version, time,
    hash, previous_hash, queue, sequence, "offset"
FROM versions WHERE hash IS DISTINCT FROM previous_hash ORDER BY "offset"
"""

_HISTORY = f"""
WITH changes AS ({_CHANGES}),
seen AS (
    SELECT object, decode(key) AS key, count(*) AS seen, count(*) FILTER (kind = 29) AS unchanged,
        max(time) AS last_seen
    FROM e WHERE letter = 'L' AND object IS NOT NULL AND key IS NOT NULL GROUP BY ALL
)
SELECT object, key, arg_max(hash, version) AS hash, max(version) AS versions, any_value(seen) AS seen,
    any_value(unchanged) AS unchanged,
    min(time) AS first_seen, max(time) AS last_change, any_value(last_seen) AS last_seen,
    arg_max(queue, version) AS queue, arg_max(sequence, version) AS sequence
FROM changes JOIN seen USING (object, key) GROUP BY object, key ORDER BY object, key
"""

_EVENTS = """SELECT * EXCLUDE (rank, leaves) FROM e WHERE letter <> 'M' ORDER BY "offset", rank"""

TABLES = {
    "events": _EVENTS,
    "messages": _MESSAGES,
    "queue_minutes": _MINUTES,
    "leases": _LEASES,
    "changes": _CHANGES,
    "object_history": _HISTORY,
}


def tables(events: pa.Table) -> Iterator[tuple[str, list[Row]]]:
    """Each table by its name, times as whole microseconds."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("given", _in_microseconds(events))
        connection.execute(_PREPARED)
        for name, query in TABLES.items():
            yield name, [as_spark(row) for row in connection.sql(query).to_arrow_table().to_pylist()]


def _in_microseconds(events: pa.Table) -> pa.Table:
    fields = [
        field.with_type(pa.timestamp("us", tz="UTC")) if pa.types.is_timestamp(field.type) else field
        for field in events.schema
    ]
    return events.cast(pa.schema(fields), safe=False)
