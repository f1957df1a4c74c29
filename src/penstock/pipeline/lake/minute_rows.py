"""Rows of `queue_minutes` for a broker, which starts this as a process of its own: it does not wait for files, and a
question that takes too long is ended with the process.

python -m penstock.pipeline.lake.minute_rows < question.json > answer.json
"""

from __future__ import annotations

import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from penstock.decoding import decode_json
from penstock.errors import LakeError

ROWS_MAX = 2000
_NICENESS = 10  # Clients of the broker come first.
_MEMORY_MAX = "512MB"
_EXACT_SECONDS = 2 * 86_400  # Over a longer time, quantiles are made of those of queues and minutes.
_FIELDS = (
    "time",
    "messages_in",
    "messages_out",
    "deliveries",
    "retries",
    "dead",
    "depth",
    "wait_p50_ms",
    "wait_p99_ms",
)


class Question(msgspec.Struct):
    lake: str
    since: float
    until: float  # Seconds since the epoch.
    step: int  # Seconds of each row: whole minutes.
    queue: str | None = None  # None: the sum of all queues.


def main() -> None:
    os.nice(_NICENESS)
    question = decode_json(sys.stdin.buffer.read(), Question)
    sys.stdout.buffer.write(msgspec.json.encode(answered(question)))


def answered(question: Question) -> dict[str, Any]:
    """The rows, or the error."""
    try:
        return {"rows": rows(question)}
    except ImportError as error:
        return {"error": f"{error.name} is not installed where the broker runs; run: pip install 'penstock[spark]'"}
    except LakeError as error:
        return {"error": str(error)}


def rows(question: Question) -> list[dict[str, Any]]:
    import duckdb

    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.reading import open_parts, open_tables

    lake = Lake(Path(question.lake))
    lake.origin()
    given: list[Any] = [question.step, question.step, question.since, question.until]
    given += [] if question.queue is None else [question.queue]
    try:
        found = [dict(zip(_FIELDS, row, strict=True)) for row in _asked(open_tables, lake, _query(question), given)]
        if question.until - question.since <= _EXACT_SECONDS:
            waits = {time: each for time, *each in _asked(open_parts, lake, _waits(question), given)}
            for row in found:
                row["wait_p50_ms"], row["wait_p99_ms"] = waits.get(row["time"], (None, None))
        return found
    except duckdb.Error as error:
        raise LakeError(str(error)) from None


def _asked(open_lake: Any, lake: Any, query: str, given: list[Any]) -> list[Any]:
    with closing(open_lake(lake, "queue_minutes")) as connection:
        connection.execute(f"SET memory_limit = '{_MEMORY_MAX}'")
        connection.execute("SET threads = 1")
        rows: list[Any] = connection.execute(query, given).fetchall()
        return rows


def _query(question: Question) -> str:
    """How deep all queues are together is not known: a queue has no row for a minute without an event."""
    one = question.queue is not None
    return f"""
        SELECT (epoch(minute)::BIGINT // ?) * ? AS time,
            sum(messages_in)::BIGINT, sum(messages_out)::BIGINT, sum(deliveries)::BIGINT, sum(retries)::BIGINT,
            sum(dead)::BIGINT, {"arg_max(depth, minute)" if one else "NULL"},
            median(wait_p50_ms)::DOUBLE, max(wait_p99_ms)::DOUBLE
        FROM queue_minutes
        WHERE minute >= to_timestamp(?) AND minute < to_timestamp(?) {"AND queue = ?" if one else ""}
        GROUP BY time ORDER BY time LIMIT {ROWS_MAX}"""


def _waits(question: Question) -> str:
    """The quantiles of all waits in a row, whatever queues and minutes they are of: histograms can be added."""
    from penstock.pipeline.lake.queries import quantile

    return f"""
        WITH buckets AS (
            SELECT (epoch(minute)::BIGINT // ?) * ? AS time, one.key AS bucket, sum(one.value) AS n
            FROM (SELECT minute, unnest(map_entries(wait)) AS one FROM queue_minutes_parts
                WHERE minute >= to_timestamp(?) AND minute < to_timestamp(?)
                {"AND queue = ?" if question.queue is not None else ""})
            GROUP BY ALL
        ),
        ranks AS (
            SELECT time, bucket, sum(n) OVER (PARTITION BY time ORDER BY bucket) AS upto,
                sum(n) OVER (PARTITION BY time) AS total
            FROM buckets
        )
        SELECT time, {quantile(50)}, {quantile(99)} FROM ranks GROUP BY time"""


if __name__ == "__main__":
    main()
