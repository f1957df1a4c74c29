"""`penstock sql`: query the lake."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli.pipeline import Conf, LakeOption, Master, parse_settings
from penstock.errors import OptionError

DEFAULT_MASTER = "local[*]"


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
    json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="CSV, with the names in the first line.")] = False,
    vertical: Annotated[bool, typer.Option("--vertical", help="Each value on a line of its own.")] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Draw bars: the numeric columns over the first one.")] = False,
    png: Annotated[Path | None, typer.Option("--png", help="Draw a chart into this file.")] = None,
    engine: Annotated[
        Engine, typer.Option("--engine", help="DuckDB starts faster; Spark can use a cluster for a large lake.")
    ] = Engine.DUCKDB,
) -> None:
    """Query the tables of the lake in SQL. `penstock pipeline tables` lists them."""
    from penstock.cli import charts, rows

    if json + csv + vertical + bool(plot or png) > 1:
        raise OptionError("choose one of --json, --csv, --vertical, and --plot or --png")
    if engine is Engine.SPARK:
        answer = _ask_spark(lake, query, limit, master, parse_settings(conf))
    elif conf or master != DEFAULT_MASTER:
        raise OptionError("--master and --conf are for Spark: add --engine spark")
    else:
        answer = _ask_duckdb(lake, query, limit)
    names = answer.schema.names
    found = rows.rows_of(answer.slice(0, limit))
    if plot:
        charts.bars(names, found)
    if png is not None:
        charts.draw(png, names, found, query)
        print(f"{png}: {len(found)} rows")
    if json:
        rows.write_json(names, found)
    elif csv:
        rows.write_csv(names, found)
    elif not plot and png is None:
        rows.show(names, found, vertical=vertical)
    if answer.num_rows > limit:
        print(f"only the first {limit} rows are shown: set --limit", file=sys.stderr)


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
