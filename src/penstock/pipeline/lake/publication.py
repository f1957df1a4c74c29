"""Publishes tables for readers of Delta that know nothing of parts: the documented columns, one row for each key.

DuckDB merges what is published with the parts that are younger. A date is rewritten only if its parts have changed;
if rows depend on earlier dates, later dates are rewritten too. While the stream runs, this is a process of its own:
`python -m` this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from contextlib import closing
from datetime import date
from pathlib import Path

import duckdb
import pyarrow as pa

from penstock.errors import LakeError
from penstock.limits import LAKE_FILE_BYTES, LAKE_PUBLISH_MEMORY_BYTES
from penstock.pipeline.lake.delta import PARTITION, LakeFile, LakeTable
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.queries import BESIDE
from penstock.pipeline.lake.reading import open_parts, open_tables, read_files
from penstock.pipeline.lake.tables import TABLES, Table, parts_table

_STAGING = "_publishing"
_ROW_GROUP_BYTES = 32 << 20
_PRIORITY = 19  # The lowest: publications use only processor time that batches leave.


def public_table(lake: Lake, table: Table, schema: pa.Schema | None = None) -> LakeTable:
    """The published table. Only a writer needs its schema."""
    given = table.schema if schema is None else schema
    return LakeTable(lake, table.name, given, by_date=table.by_date, staging=_STAGING)


def publish(lake: Lake, table: Table, *, everything: bool = False, threads: int | None = None) -> int:
    """Bring the public table up to date with its parts. Returns how many rows were written."""
    if not table.in_parts:
        return 0
    origin = lake.origin()
    parts = parts_table(lake, table)
    made_from = [parts, *(parts_table(lake, TABLES[name]) for name in BESIDE.get(table.name, ()))]
    reached = tuple(map(min, zip(*(each.reached(origin) for each in made_from), strict=True)))
    files = parts.files()
    with closing(open_parts(lake, table.name)) as connection:
        public = public_table(lake, table, connection.table(table.name).limit(0).to_arrow_table().schema)
    is_narrow = public.exists() and public.lacks_columns()
    everything = everything or is_narrow or not public.exists()
    published = sum(public.reached(origin))
    changed = files if everything else [file for file in files if file.end > published]
    if not changed and not everything:
        return 0
    dates: Collection[date] | None
    if everything:
        dates = {file.date for file in (*files, *public.files()) if file.date} if table.by_date else None
    else:
        dates = _dates(table, parts, changed, files, public)
    opened = open_parts(lake, table.name, dates) if everything else open_tables(lake, table.name)
    with closing(opened) as connection:
        _limit(connection, threads)
        public.make()
        old = [file for file in public.files() if dates is None or file.date in dates]
        _write(connection, table, public.stage(), dates)
    added = public.publish(old, origin, reached, {"published": str(sum(reached))})
    if is_narrow:  # Only now: what is interrupted is done again, and no row lacks a value.
        public.widen()
    return sum(file.rows for file in added)


def publish_all(lake: Lake, *, threads: int | None = None) -> None:
    for table in TABLES.values():
        publish(lake, table, threads=threads)


def _dates(
    table: Table, parts: LakeTable, changed: Sequence[LakeFile], files: Sequence[LakeFile], public: LakeTable
) -> Collection[date] | None:
    """The dates to rewrite; None if the table is not divided by date."""
    if not table.by_date:
        return None
    dates = {file.date for file in changed if file.date}
    if table.cumulative:
        return {file.date for file in files if file.date and file.date >= min(dates)}
    return dates | _reached_back(table, parts.uris(changed), public) if table.reaches_back else dates


def _reached_back(table: Table, changed: Sequence[str], public: LakeTable) -> set[date]:
    """The dates of messages that wait, as published, in a queue that was removed meanwhile: they end with it."""
    published = public.uris(public.files()) if public.exists() else []
    if not published or not changed:
        return set()
    ended = f"SELECT DISTINCT queue_number FROM {read_files(changed, by_date=True)} WHERE {table.reaches_back}"
    with closing(duckdb.connect()) as connection:
        queues = ", ".join(str(number) for (number,) in connection.execute(ended).fetchall())
        if not queues:
            return set()
        waiting = f"{read_files(published, by_date=True)} WHERE queued AND queue_number IN ({queues})"
        return {day for (day,) in connection.execute(f"SELECT DISTINCT {PARTITION} FROM {waiting}").fetchall()}


def _limit(connection: duckdb.DuckDBPyConnection, threads: int | None) -> None:
    connection.execute(f"SET memory_limit = '{LAKE_PUBLISH_MEMORY_BYTES} B'")
    connection.execute("SET preserve_insertion_order = false")  # Needed for row groups that are limited in bytes.
    if threads:
        connection.execute(f"SET threads = {threads}")


def _write(connection: duckdb.DuckDBPyConnection, table: Table, folder: Path, dates: Collection[date] | None) -> None:
    """Stage the rows for the next commit, each date in a directory of its own."""
    source = table.name
    if dates is None:
        _copy(connection, f"SELECT * FROM {source}", table, folder)
        return
    if table.cumulative and len(dates) > 1:  # Merged once, and not once for each date.
        listed = ", ".join(f"DATE '{day}'" for day in sorted(dates))
        source = f"{table.name}_rewritten"
        connection.execute(f"CREATE TEMP TABLE {source} AS FROM {table.name} WHERE {PARTITION} IN ({listed})")
    for day in sorted(dates):
        query = f"SELECT * EXCLUDE ({PARTITION}) FROM {source} WHERE {PARTITION} = DATE '{day}'"
        _copy(connection, query, table, folder / f"{PARTITION}={day}")


def _copy(connection: duckdb.DuckDBPyConnection, query: str, table: Table, folder: Path) -> None:
    folder.mkdir(parents=True)
    connection.execute(
        f"COPY ({query} ORDER BY {', '.join(table.order)}) TO '{folder}' (FORMAT parquet,"
        f" COMPRESSION zstd, FILE_SIZE_BYTES {LAKE_FILE_BYTES}, ROW_GROUP_SIZE_BYTES {_ROW_GROUP_BYTES},"
        " FILENAME_PATTERN '{uuid}')"
    )


def main() -> None:
    os.nice(_PRIORITY)
    try:
        publish_all(Lake(Path(sys.argv[1])), threads=1)
    except (LakeError, OSError, duckdb.Error) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
