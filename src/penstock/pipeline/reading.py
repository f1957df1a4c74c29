"""The tables of a lake without Spark: DuckDB reads their files and merges parts. Exactly what Spark would show.

penstock.lake("lake").table("messages").to_pandas()
penstock.lake("lake").sql("select state, count(*) from messages group by state").to_arrow()
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.errors import LakeError
from penstock.limits import CONSUMERS_SHOWN_MAX
from penstock.model.letters import ORDER
from penstock.pipeline.lake import PARTITION, PARTS, Lake

_HOPS_MAX = 8  # So many moves a message is followed back to where its content is.


class Answer:
    """Rows. They are computed when they are asked for, from the files that there were when this was made."""

    def __init__(self, relation: duckdb.DuckDBPyRelation) -> None:
        self.relation = relation

    @property
    def columns(self) -> list[str]:
        return list(self.relation.columns)

    def select(self, *columns: str) -> Answer:
        return Answer(_asked(lambda: self.relation.select(*columns)))

    def where(self, condition: str) -> Answer:
        """The rows for which this condition in SQL holds."""
        return Answer(_asked(lambda: self.relation.filter(condition)))

    def limit(self, rows: int) -> Answer:
        return Answer(self.relation.limit(rows))

    def to_arrow(self) -> pa.Table:
        return _asked(self.relation.to_arrow_table)

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`."""
        return self.to_arrow().to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.to_arrow().to_pylist()
        return rows

    def __len__(self) -> int:
        return int(self.to_arrow().num_rows)

    def __repr__(self) -> str:
        return repr(self.relation)


class LakeReader:
    """A lake, read as it is at each question."""

    def __init__(self, path: str | Path) -> None:
        """Raises `LakeError` where there is no lake."""
        self._lake = Lake(Path(path))
        self._lake.origin()

    @property
    def tables(self) -> list[str]:
        return list(VIEWS)

    def is_empty(self) -> bool:
        try:
            return not DeltaTable(str(self._lake.path / "events")).file_uris()
        except TableNotFoundError:
            return True

    def table(self, name: str) -> Answer:
        """A table by its name, with all its documented columns and one row for each key."""
        if name not in VIEWS:
            raise LakeError(f"there is no table {name}; the tables are {', '.join(VIEWS)}")
        return Answer(_open(self._lake, name).table(name))

    def sql(self, query: str) -> Answer:
        """A question in DuckDB's SQL over all tables. Raises `LakeError` if it is wrong."""
        connection = _open(self._lake, *VIEWS)
        found: duckdb.DuckDBPyRelation | None = _asked(lambda: connection.sql(query))
        if found is None:
            raise LakeError("this is not a question: it has no rows for an answer")
        return Answer(found)


def open_lake(path: str | Path) -> LakeReader:
    return LakeReader(path)


def _open(lake: Lake, *names: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"temp_directory": tempfile.gettempdir()})
    connection.execute("SET TimeZone = 'UTC'")
    for name in names:
        query = VIEWS[name]
        try:
            _register(connection, lake.path / (PARTS if query else "") / name, f"{name}_parts" if query else name)
        except TableNotFoundError:
            raise LakeError(lake.emptiness()) from None
        if query:
            connection.execute(f"CREATE VIEW {name} AS {query}")
    return connection


def _register(connection: duckdb.DuckDBPyConnection, path: Path, name: str) -> None:
    """The files of a Delta table as a view."""
    delta = DeltaTable(str(path))
    schema = pa.schema(delta.schema().to_arrow())
    files = delta.file_uris()
    if not files:
        connection.register(name, schema.empty_table())
        return
    hive = f", hive_types = {{'{PARTITION}': DATE}}" if PARTITION in schema.names else ""
    columns = ", ".join(f'"{column}"' for column in schema.names)
    listed = ", ".join(_quoted(file) for file in files)
    source = f"read_parquet([{listed}], hive_partitioning = {bool(hive)}{hive})"
    connection.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM {source}")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _asked(question: Callable[[], Any]) -> Any:
    """Raises `LakeError` with what is wrong, and where."""
    try:
        return question()
    except duckdb.Error as error:
        raise LakeError(str(error).strip()) from None


# ── What a reader sees of merged parts: as the views in tables.py, and a test compares the two ────────────────

_SUBDIVISION = 64
_KEY = "coalesce(try(decode(key)), '0x' || lower(hex(key)))"


def _letter(moment: str) -> str:
    return f"nullif(substr('{ORDER}', ({moment} % 16)::INTEGER, 1), '')"


_TIMES = ("created", "entered", "consumed", "processed", "completed", "failed", "gone")
_TOLD = ("content_type", "sender", "object", "topics", "priority")
_CONTENT = ("body", "key", "headers", "digest")
_ELSEWHERE = tuple(
    f"{whence}_{name}" for whence in ("origin", "moved") for name in ("queue", "queue_number", "sequence")
)
_COUNTED = (
    *("logged", "messages_in", "messages_out", "deliveries", "confirmations", "retries", "dead", "expired"),
    *("deleted", "unchanged", "invalid", "not_interested"),
)


def _each(pattern: str, names: tuple[str, ...]) -> str:
    return ", ".join(pattern.format(name) for name in names)


_MESSAGES = f"""
WITH RECURSIVE merged AS (
    SELECT date, queue_number, sequence,
        {_each("max({0}) AS {0}", ("last", "receives", "modified", "queue", *_ELSEWHERE))},
        {_each("min({0}) AS {0}", _TIMES)},
        {_each("any_value({0}) AS {0}", (*_TOLD, "expires_at", *_CONTENT))}
    FROM messages_parts GROUP BY ALL
),
removals AS (
    SELECT queue_number, gone AS removed_at, last AS removal FROM merged WHERE sequence = 0
),
lives AS (
    SELECT merged.* REPLACE (coalesce(gone, removed_at) AS gone,
        if(gone IS NULL, coalesce(removal, last), last) AS last,
        if(gone IS NULL, coalesce(removed_at, modified), modified) AS modified)
    FROM merged LEFT JOIN removals USING (queue_number) WHERE sequence <> 0
),
hands AS (
    SELECT date, queue_number, sequence, one.consumer AS consumer, min(one.fetched) AS fetched,
        min(one.confirmed) AS confirmed, max(one.outcome) AS outcome, sum(one.deliveries)::BIGINT AS deliveries
    FROM (SELECT date, queue_number, sequence, unnest(consumers) AS one FROM messages_parts) GROUP BY ALL
),
lists AS (
    SELECT date, queue_number, sequence, list({{'consumer': consumer, 'fetched': fetched, 'confirmed': confirmed,
            'duration_ms': (epoch_us(confirmed) - epoch_us(fetched)) / 1000,
            'outcome': {_letter("outcome")}, 'deliveries': deliveries}}
        ORDER BY consumer NULLS FIRST)[:{CONSUMERS_SHOWN_MAX}] AS consumers
    FROM hands GROUP BY ALL
),
ways AS (
    SELECT queue_number, sequence, origin_queue_number AS root_queue_number, origin_sequence AS root_sequence,
        1 AS hops
    FROM lives WHERE origin_queue_number IS NOT NULL
    UNION ALL
    SELECT ways.queue_number, ways.sequence, before.origin_queue_number, before.origin_sequence, hops + 1
    FROM ways JOIN lives AS before
        ON before.queue_number = ways.root_queue_number AND before.sequence = ways.root_sequence
    WHERE before.origin_queue_number IS NOT NULL AND hops < {_HOPS_MAX}
),
roots AS (
    SELECT queue_number, sequence, arg_max(root_queue_number, hops) AS root_queue_number,
        arg_max(root_sequence, hops) AS root_sequence
    FROM ways GROUP BY ALL
),
documents AS (
    SELECT own.* EXCLUDE ({_each("{0}", (*_TOLD, *_CONTENT))}),
        {_each("if(own.priority IS NULL, root.{0}, own.{0}) AS {0}", _TOLD)},
        coalesce(own.body, root.body) AS body, coalesce(own.key, root.key) AS key,
        coalesce(own.headers, if(own.entered IS NULL, NULL, root.headers)) AS headers
    FROM lives AS own LEFT JOIN roots USING (queue_number, sequence)
        LEFT JOIN (FROM lives WHERE body IS NOT NULL) AS root
        ON root.queue_number = root_queue_number AND root.sequence = root_sequence
)
SELECT queue, queue_number, sequence, body AS message, content_type,
    list_filter(string_split(topics, chr(10)), lambda topic: topic <> '') AS topics,
    object, {_KEY} AS key, headers, sender, priority, {_letter("last")} AS state,
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
    coalesce(consumers, []) AS consumers, {_each("{0}", _ELSEWHERE)}, date
FROM documents LEFT JOIN lists USING (date, queue_number, sequence)
"""


def _histogram(name: str) -> str:
    """The buckets of a histogram with how many values are in them and in those before."""
    return f"""
    {name}_buckets AS (
        SELECT queue_number, minute, one.key AS bucket, sum(one.value) AS n
        FROM (SELECT queue_number, minute, unnest(map_entries({name})) AS one FROM queue_minutes_parts) GROUP BY ALL
    ),
    {name}_ranks AS (
        SELECT queue_number, minute, bucket, sum(n) OVER (PARTITION BY queue_number, minute ORDER BY bucket) AS upto,
            sum(n) OVER (PARTITION BY queue_number, minute) AS total
        FROM {name}_buckets
    ),
    {name}_quantiles AS (
        SELECT queue_number, minute, {_quantile(50)} AS {name}_p50_ms, {_quantile(99)} AS {name}_p99_ms
        FROM {name}_ranks GROUP BY ALL
    )"""


def _quantile(percent: int) -> str:
    return f"{_middle(f'min(bucket) FILTER (upto >= (total * {percent} + 99) // 100)')} / 1000"


def _middle(bucket: str) -> str:
    shift = f"greatest(0, {bucket} // {_SUBDIVISION} - 1)"
    return f"((({bucket} - {shift} * {_SUBDIVISION})::BIGINT << {shift}) + ((1::BIGINT << {shift}) >> 1))"


_MINUTES = f"""
WITH counted AS (
    SELECT date, queue_number, minute, max(queue) AS queue, {_each("sum({0})::BIGINT AS {0}", (*_COUNTED, "gone"))}
    FROM queue_minutes_parts GROUP BY ALL
),
{_histogram("wait")}, {_histogram("processing")}
SELECT queue, queue_number, minute, {_each("{0}", _COUNTED)},
    greatest((sum(messages_in - gone) OVER (PARTITION BY queue_number ORDER BY minute))::BIGINT, 0) AS depth,
    wait_p50_ms, wait_p99_ms, processing_p50_ms, processing_p99_ms, date
FROM counted LEFT JOIN wait_quantiles USING (queue_number, minute)
    LEFT JOIN processing_quantiles USING (queue_number, minute)
"""

_CHANGES = f"""
WITH compared AS (
    SELECT *, lag(hash) OVER (PARTITION BY object, key ORDER BY "offset") AS previous_hash FROM changes_parts
),
changed AS (FROM compared WHERE hash IS DISTINCT FROM previous_hash)
SELECT object, {_KEY} AS key, (row_number() OVER line)::INTEGER AS version, time, hash, previous_hash,
    lag(time) OVER line AS previous_time, queue, queue_number, sequence, "offset", date
FROM changed WINDOW line AS (PARTITION BY object, key ORDER BY "offset")
"""

_HISTORY = f"""
WITH joined AS (
    SELECT *, coalesce(last_value(last.hash IGNORE NULLS) OVER (
        PARTITION BY object, key ORDER BY first."offset" NULLS FIRST
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) <> first.hash, false) AS is_change
    FROM object_history_parts
),
merged AS (
    SELECT object, key, arg_min(first, first."offset") AS first, arg_max(last, last."offset") AS last,
        (sum(changes) + count(*) FILTER (is_change))::BIGINT AS changes, sum(seen)::BIGINT AS seen,
        sum(unchanged)::BIGINT AS unchanged, max(seen_at) AS seen_at,
        arg_max(coalesce(changed, if(is_change, first, NULL)),
            coalesce(changed, if(is_change, first, NULL))."offset") AS changed
    FROM joined GROUP BY object, key
)
SELECT object, {_KEY} AS key, last.hash AS hash, changes + 1 AS versions, seen, unchanged, first.time AS first_seen,
    coalesce(changed, first).time AS last_change, seen_at AS last_seen, coalesce(changed, first).queue AS queue,
    coalesce(changed, first).queue_number AS queue_number, coalesce(changed, first).sequence AS sequence
FROM merged
"""

# Of each table: how its parts are merged; nothing where it is not kept in parts.
VIEWS = {
    "events": "",
    "queue_minutes": _MINUTES,
    "leases": "",
    "messages": _MESSAGES,
    "changes": _CHANGES,
    "object_history": _HISTORY,
}
