"""Reads the tables of a lake without Spark: DuckDB reads the files and merges parts, with the same result.

penstock.lake("lake").table("messages").to_pandas()
penstock.lake("lake").sql("select state, count(*) from messages group by state").to_arrow()
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.errors import LakeError
from penstock.pipeline.lake.delta import PARTITION
from penstock.pipeline.lake.directory import PARTS, Lake
from penstock.pipeline.lake.queries import BESIDE, VIEWS
from penstock.pipeline.lake.tables import TABLES, Table


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
        try:
            return not DeltaTable(str(self._lake.path / "events")).file_uris()
        except TableNotFoundError:
            return True

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


def open_tables(lake: Lake, *names: str, dates: Collection[date] | None = None) -> duckdb.DuckDBPyConnection:
    """A connection with these tables as views; if `dates` are given, `messages` has only those."""
    connection = duckdb.connect(config={"temp_directory": tempfile.gettempdir()})
    connection.execute("SET TimeZone = 'UTC'")
    for name in dict.fromkeys(each for asked in names for each in (*BESIDE.get(asked, ()), asked)):
        query = VIEWS[name]
        try:
            _register(connection, lake.path / (PARTS if query else "") / name, TABLES[name])
        except TableNotFoundError:
            raise LakeError(lake.emptiness()) from None
        if name == "messages":
            days = ", ".join(f"DATE '{day}'" for day in dates or ())
            chosen = f"WHERE {PARTITION} IN ({days})" if days else ""
            connection.execute(f"CREATE VIEW messages_chosen AS FROM messages_parts {chosen}")
        if query:
            connection.execute(f"CREATE VIEW {name} AS {query}")
    return connection


def _register(connection: duckdb.DuckDBPyConnection, path: Path, table: Table) -> None:
    """Define a view over the files of a Delta table: the table itself, or its parts."""
    name = f"{table.name}_parts" if VIEWS[table.name] else table.name
    files = DeltaTable(str(path)).file_uris()
    if not files:
        connection.register(name, table.schema.empty_table())
        return
    columns = ", ".join(f'"{column}"' for column in table.schema.names)
    source = read_files(files, by_date=table.by_date)
    connection.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM {source}")


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
