"""`penstock sql`: query the lake."""

from __future__ import annotations

import datetime
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cli.extras import how_to_install
from penstock.cli.pipeline import Conf, LakeOption, Master, parse_settings
from penstock.errors import OptionError

DEFAULT_MASTER = "local[*]"
_BAR_CELLS = 50
_EIGHTHS = " ▏▎▍▌▋▊▉"


class Engine(StrEnum):
    """What runs the query."""

    DUCKDB = "duckdb"
    SPARK = "spark"


def sql(
    query: Annotated[str, typer.Argument(help='For example "select * from queue_minutes".')],
    lake: LakeOption = Path("lake"),
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    limit: Annotated[int, typer.Option(min=1, help="How many rows to show at most.")] = 1000,
    plot: Annotated[bool, typer.Option("--plot", help="Draw bars: the numeric columns over the first one.")] = False,
    png: Annotated[Path | None, typer.Option("--png", help="Draw a chart into this file.")] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="DuckDB starts faster; Spark can use a cluster for a large lake.")
    ] = Engine.DUCKDB,
) -> None:
    """Query the tables of the lake in SQL. `penstock pipeline tables` lists them."""
    if engine is Engine.SPARK:
        answer = _ask_spark(lake, query, limit, master, parse_settings(conf))
    elif conf or master != DEFAULT_MASTER:
        raise OptionError("--master and --conf are for Spark: add --engine spark")
    else:
        answer = _ask_duckdb(lake, query, limit)
    names, rows = answer.schema.names, [list(row.values()) for row in answer.slice(0, limit).to_pylist()]
    console = Console()
    if plot:
        _bars(console, names, rows)
    if png is not None:
        _draw(png, names, rows, query)
        console.print(f"{png}: {len(rows)} rows")
    if not plot and png is None:
        console.print(_grid(names, rows))
    if answer.num_rows > limit:
        console.print(f"There are more rows: only {limit} are shown (--limit).")


def _ask_duckdb(lake: Path, query: str, limit: int) -> Any:
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.reading import open_lake

    reader = open_lake(lake)
    answer = reader.sql(query).limit(limit + 1).to_arrow()
    if reader.is_empty():
        print(Lake(lake).emptiness(), file=sys.stderr)
    return answer


def _ask_spark(lake: Path, query: str, limit: int, master: str, settings: dict[str, str]) -> Any:
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.sql import ask
    from penstock.pipeline.session import open_session

    place = Lake(lake)
    place.origin()
    spark = open_session("penstock sql", master, settings)
    try:
        return ask(spark, place, query, limit)
    finally:
        spark.stop()


def _grid(names: list[str], rows: list[list[Any]]) -> Table:
    grid = Table(box=SIMPLE_HEAD)
    for at, name in enumerate(names):
        grid.add_column(name, justify="right" if rows and _is_number(rows[0][at]) else "left")
    for row in rows:
        grid.add_row(*[Text(_shown(value)) for value in row])
    return grid


def _bars(console: Console, names: list[str], rows: list[list[Any]]) -> None:
    """Draw one block of bars for each numeric column."""
    for at in _numbers(names, rows):
        highest = max((row[at] or 0 for row in rows), default=0) or 1
        grid = Table(box=None, title=names[at], title_justify="left", show_header=False)
        for row in rows:
            grid.add_row(Text(_shown(row[0])), Text(_bar((row[at] or 0) / highest)), Text(_shown(row[at])))
        console.print(grid)


def _bar(share: float) -> str:
    eighths = round(max(0.0, share) * _BAR_CELLS * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _draw(path: Path, names: list[str], rows: list[list[Any]], title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError(
            f"--png needs matplotlib: {how_to_install(error)}; or use --plot for the terminal"
        ) from None
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=names[0])
    along = [row[0] if isinstance(row[0], datetime.date) or _is_number(row[0]) else _shown(row[0]) for row in rows]
    for at in _numbers(names, rows):
        axes.plot(along, [row[at] for row in rows], marker=".", label=names[at])
    axes.legend()
    figure.savefig(path)


def _numbers(names: list[str], rows: list[list[Any]]) -> list[int]:
    found = [at for at in range(1, len(names)) if any(_is_number(row[at]) for row in rows)]
    if not found:
        raise OptionError("nothing to draw: the query needs a numeric column after the first one")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value)
