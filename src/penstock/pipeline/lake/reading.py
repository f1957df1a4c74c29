"""Reads the tables of a lake without Spark: DuckDB reads the files and merges parts, with the same result.

penstock.lake("lake").table("messages").to_pandas()
penstock.lake("lake").sql("select state, count(*) from messages group by state").to_arrow()
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from penstock.errors import LakeError
from penstock.pipeline.lake.delta import PARTITION, LakeFile, LakeTable
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.queries import BESIDE, CONTINUED, VIEWS, WHOLE
from penstock.pipeline.lake.tables import DOCUMENTED, EVENTS, TABLES, Table, parts_table


class Answer:
    """Rows of a table or query, computed on demand from the files that existed when it was made."""

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
    """A lake. Each call sees its current state."""

    def __init__(self, path: str | Path) -> None:
        """Raises `LakeError` if there is no lake at `path`."""
        self._lake = Lake(Path(path))
        self._lake.origin()

    @property
    def tables(self) -> list[str]:
        return list(VIEWS)

    def is_empty(self) -> bool:
        return not parts_table(self._lake, EVENTS).files()

    def table(self, name: str) -> Answer:
        """A table by its name, with all its documented columns and one row for each key."""
        if name not in VIEWS:
            raise LakeError(f"unknown table {name}; the tables are {', '.join(VIEWS)}")
        return Answer(open_tables(self._lake, name).table(name))

    def sql(self, query: str) -> Answer:
        """The result of a query over all tables, in DuckDB's SQL. Raises `LakeError` if the query is wrong."""
        connection = open_tables(self._lake, *VIEWS)
        found: duckdb.DuckDBPyRelation | None = _asked(lambda: connection.sql(query))
        if found is None:
            raise LakeError("the statement returns no rows: use a query, such as select … from messages")
        return Answer(found)


def open_lake(path: str | Path) -> LakeReader:
    return LakeReader(path)


def open_tables(lake: Lake, *names: str) -> duckdb.DuckDBPyConnection:
    """A connection with these tables as views: what was published, and merged with it what is younger."""
    connection = _connected()
    for name in names:
        published = _published(lake, TABLES[name])  # First, so that the parts have all that is in it.
        files = _files(parts_table(lake, TABLES[name]), lake)
        young = [file for file in files if published is None or file.end > published.end]
        if published is None:
            _define_whole(connection, lake, name, files)
            continue
        _register(connection, f"{name}_published", DOCUMENTED[name], published.uris, published.table)
        if not young:
            connection.execute(f"CREATE VIEW {name} AS FROM {name}_published")
        elif name in CONTINUED:
            _define_continued(connection, lake, name, files, young)
        else:
            _define_whole(connection, lake, name, files)
    return connection


def open_parts(lake: Lake, name: str, dates: Collection[date] | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with one table as a view, merged from all its parts; if `dates` are given, `messages` has only
    those."""
    connection = _connected()
    _define_whole(connection, lake, name, _files(parts_table(lake, TABLES[name]), lake), dates)
    return connection


def _connected() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"temp_directory": tempfile.gettempdir()})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


class _Published(NamedTuple):
    """A published table that has all columns."""

    table: LakeTable
    end: int  # The sum of the offsets that it has.
    uris: list[str]


def _published(lake: Lake, table: Table) -> _Published | None:
    """None if the table is not kept in parts, or was not published from this log by this version."""
    public = LakeTable(lake, table.name, table.schema, by_date=table.by_date)
    if not table.in_parts or not public.exists() or not {*DOCUMENTED[table.name]} <= {*public.arrow_schema().names}:
        return None
    end = sum(public.reached(lake.origin()))
    return _Published(public, end, public.uris(public.files())) if end else None


def _files(parts: LakeTable, lake: Lake) -> list[LakeFile]:
    if not parts.exists():
        raise LakeError(lake.emptiness())
    return parts.files()


def _define_whole(
    connection: duckdb.DuckDBPyConnection,
    lake: Lake,
    name: str,
    files: Sequence[LakeFile],
    dates: Collection[date] | None = None,
) -> None:
    """Define a table as the merge of all its parts."""
    query = VIEWS[name]
    _register_parts(connection, lake, name, f"{name}_parts" if query else name, files)
    for each in BESIDE.get(name, ()):
        _register_parts(connection, lake, each, f"{each}_parts", _files(parts_table(lake, TABLES[each]), lake))
    for view, chosen in WHOLE.get(name, {}).items():
        days = ", ".join(f"DATE '{day}'" for day in dates or ()) if name == "messages" else ""
        connection.execute(f"CREATE VIEW {view} AS {chosen}" + (f" WHERE {PARTITION} IN ({days})" if days else ""))
    if query:
        connection.execute(f"CREATE VIEW {name} AS {query}")


def _define_continued(
    connection: duckdb.DuckDBPyConnection,
    lake: Lake,
    name: str,
    files: Sequence[LakeFile],
    young: Sequence[LakeFile],
) -> None:
    """Define a table as what is published, without the rows of which there is something younger, and these."""
    continued = CONTINUED[name]
    for suffix, chosen in (("parts", files), ("young", young)):
        _register_parts(connection, lake, name, f"{name}_{suffix}", chosen)
    for view, query in continued.views.items():
        connection.execute(f"CREATE VIEW {view} AS {query}")
    connection.execute(f"CREATE VIEW {name}_merged AS {VIEWS[name]}")
    columns = ", ".join(f'"{column}"' for column in DOCUMENTED[name])
    connection.execute(
        f"CREATE VIEW {name} AS SELECT {columns} FROM {continued.published}"
        f" UNION ALL SELECT {columns} FROM {name}_merged"
    )


def _register_parts(
    connection: duckdb.DuckDBPyConnection, lake: Lake, name: str, view: str, files: Sequence[LakeFile]
) -> None:
    parts = parts_table(lake, TABLES[name])
    _register(connection, view, TABLES[name].schema.names, parts.uris(files), parts)


def _register(
    connection: duckdb.DuckDBPyConnection, name: str, columns: Sequence[str], uris: Sequence[str], table: LakeTable
) -> None:
    """Define a view over files."""
    if not uris:
        schema = table.arrow_schema()
        connection.register(name, pa.schema([schema.field(column) for column in columns]).empty_table())
        return
    listed = ", ".join(f'"{column}"' for column in columns)
    connection.execute(
        f"CREATE OR REPLACE VIEW {name} AS SELECT {listed} FROM {read_files(uris, by_date=table.by_date)}"
    )


def read_files(files: Sequence[str], *, by_date: bool) -> str:
    """A table function of DuckDB that reads these files."""
    listed = ", ".join(_quoted(file) for file in files)
    hive = f", hive_types = {{'{PARTITION}': DATE}}" if by_date else ""
    return f"read_parquet([{listed}], hive_partitioning = {by_date}{hive})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _asked(question: Callable[[], Any]) -> Any:
    """The result of a call to DuckDB. Raises `LakeError` with DuckDB's message."""
    try:
        return question()
    except duckdb.Error as error:
        raise LakeError(str(error).strip()) from None
