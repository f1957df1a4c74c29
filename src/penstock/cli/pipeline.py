"""`penstock pipeline`: fill a lake of tables with the events of a log, and maintain it."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from penstock.cli import output
from penstock.cli.messages import duration
from penstock.cli.profiles import DEFAULT_URL
from penstock.cli.stopping import StopSignals
from penstock.errors import BrokerError, DataDirectoryError, LakeAddressError, LakeError, OptionError

app = typer.Typer(help="Fill a lake of tables with the events of a log, and maintain it.", no_args_is_help=True)


def _lake_path(given: str | Path) -> Path:
    text = str(given)  # The default is a path already.
    if "://" in text:
        raise LakeAddressError(text)
    return Path(text)


LakeOption = Annotated[
    Path, typer.Option("--lake", envvar="PENSTOCK_LAKE", parser=_lake_path, help="The directory of the tables.")
]
Master = Annotated[str, typer.Option("--master", help="Where Spark runs: local[*], spark://…, yarn, k8s://…")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark. May be repeated.")
]
Url = Annotated[str | None, typer.Option("--url", help=f"The broker [default: $PENSTOCK_URL, or {DEFAULT_URL}]")]
Data = Annotated[Path | None, typer.Option("--data", help="Read this data directory instead of a broker.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
Token = Annotated[str, typer.Option("--token", envvar="PENSTOCK_TOKEN", help="The broker's bearer token.")]

_REFRESH_SECONDS = 1.0
_TLS_VARIABLES = {
    "ca": "PENSTOCK_CA",
    "certificate": "PENSTOCK_CERTIFICATE",
    "certificateKey": "PENSTOCK_CERTIFICATE_KEY",
}
_LAG_SECONDS_MAX = 600
_RATES = 10  # How many batches a rate is averaged over.


@app.command()
def run(
    lake: LakeOption = Path("lake"),
    url: Url = None,
    data: Data = None,
    token: Token = "",
    master: Master = "local[*]",
    conf: Conf = None,
    once: Annotated[bool, typer.Option("--once", help="Read the events that exist now, then exit.")] = False,
    every: Annotated[float, typer.Option("--every", min=0.0, help="Seconds between batches.")] = 5.0,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Continue if events, or what waited before them, cannot be read any more."),
    ] = False,
) -> None:
    """Fill the lake, until Ctrl-C or SIGTERM."""
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.division import open_lake_for
    from penstock.pipeline.lake.housekeeping import Housekeeper
    from penstock.pipeline.lake.initial_state import begin
    from penstock.pipeline.lake.publication import publish_all
    from penstock.pipeline.lake.stream import Filler, has_ended, start_query, stop_query
    from penstock.pipeline.lake.upgrade import upgrade as upgrade_lake
    from penstock.pipeline.session import open_session

    source = _source(url, data, token)
    logs = _logs(source)
    place = Lake(lake)
    place.take()
    extents = logs.extents()
    origin = open_lake_for(place, extents)
    view = _View(place.path, logs)
    with StopSignals() as signals, view:
        begin(place, origin, logs.logs, extents, view.note, skip_lost=skip_lost)
        view.doing("starting Spark")
        spark = open_session("penstock pipeline", master, parse_settings(conf))
        signals.take_back()
        upgrade_lake(spark, place, view.doing)
        keeper = Housekeeper(spark, place)

        def written(what: Any) -> None:
            view.written(what)
            keeper.wake()

        filler = Filler(place, origin, written, view.doing)
        options = source | {"failOnDataLoss": str(not skip_lost).lower()}
        query = start_query(spark, place, filler, options, once=once, seconds=every)
        keeper.start()
        try:
            while not signals.asked and not has_ended(query, _REFRESH_SECONDS):
                view.refresh()
            if once and not signals.asked:
                keeper.stop()
                publish_all(place)
        finally:
            if signals.asked:
                view.stopping()
            stop_query(spark, query, filler, at_once=lambda: signals.asked_again)
            keeper.stop()
            spark.stop()
            place.release()
    if signals.asked:
        print(f"pipeline stopped at offset {_shown(filler.reached())}; the broker's data is safe")


@app.command()
def status(
    lake: LakeOption = Path("lake"), url: Url = None, data: Data = None, token: Token = "", json: AsJson = False
) -> None:
    """Show how far each table is, what of it is published, and how far both are behind the log."""
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.publication import public_table
    from penstock.pipeline.lake.tables import TABLES, parts_table

    place = Lake(lake)
    origin = place.origin()
    reached = {
        name: [each(place, table).reached(origin) for each in (parts_table, public_table)]
        for name, table in TABLES.items()
    }
    ends, problem = _end_of_log(_source(url, data, token), origin)
    if json:
        rows = {name: {"has": has, "published": published} for name, (has, published) in reached.items()}
        output.emit({"lake": str(place.path), "logs": origin.logs, "end": ends, "tables": rows})
        return
    console = Console(highlight=False)
    console.print(f"{place.path}: tables of log {', '.join(origin.logs)}")
    console.print(problem or f"the log ends at offset {_shown(ends or ())}")
    grid = Grid(box=SIMPLE_HEAD)
    grid.add_column("table")
    for column in ("has events up to", "behind by", "published up to", "behind by"):
        grid.add_column(column, justify="right")
    for name, every in reached.items():
        grid.add_row(name, *[text for offsets in every for text in (_shown(offsets), _behind(ends, offsets))])
    console.print(grid)
    console.print("penstock sql and penstock.lake read what a table has; other readers of Delta what is published.")


def _end_of_log(source: dict[str, str], origin: Any) -> tuple[list[int] | None, str]:
    """Where the log ends, or why that is not known."""
    try:
        return _ends_of(_logs(source).extents(), origin), ""
    except (BrokerError, DataDirectoryError, OptionError) as error:
        return None, f"the end of the log is unknown: {error}"


def _behind(ends: Sequence[int] | None, offsets: Sequence[int]) -> str:
    return "unknown" if ends is None else f"{max(0, sum(ends) - sum(offsets)):,} records"


def _ends_of(extents: Sequence[Any], origin: Any) -> list[int]:
    found = tuple(extent.id for extent in extents)
    if found != origin.logs:
        before, now = ", ".join(origin.logs), ", ".join(found)
        raise LakeError(f"this is the lake of log {before}, not of {now}: choose another --url or --data")
    return [extent.end for extent in extents]


def _shown(offsets: Sequence[int]) -> str:
    """The offsets of all shards, in their order."""
    return " · ".join(f"{offset:,}" for offset in offsets)


@app.command()
def tables(lake: LakeOption = Path("lake"), json: AsJson = False) -> None:
    """List the published tables and their size."""
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.publication import public_table
    from penstock.pipeline.lake.tables import TABLES

    place = Lake(lake)
    place.origin()
    names, rows = ("table", "rows", "files", "bytes", "version", "content"), []
    for table in TABLES.values():
        found = public_table(place, table)
        if found.exists():
            files = found.files()
            count, size = sum(file.rows for file in files), sum(file.bytes for file in files)
            rows.append((table.name, count, len(files), size, found.version(), table.what))
    if json:
        for row in rows:
            output.emit(dict(zip(names, row, strict=True)))
        return
    grid = Grid(box=SIMPLE_HEAD)
    for name in names:
        grid.add_column(name, justify="left" if name in ("table", "content") else "right")
    for name, count, number, size, version, what in rows:
        grid.add_row(name, f"{count:,}", str(number), decimal(size), str(version), what)
    Console().print(grid)


@app.command()
def compact(
    lake: LakeOption = Path("lake"),
    master: Master = "local[*]",
    conf: Conf = None,
    hours: Annotated[
        float | None, typer.Option("--vacuum", min=0.0, help="Remove files unused for this many hours.")
    ] = None,
) -> None:
    """Merge small files, publish all tables, and remove old files."""
    from penstock.limits import LAKE_VACUUM_HOURS
    from penstock.pipeline.lake.compaction import compact as compact_table
    from penstock.pipeline.lake.compaction import vacuum
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.publication import publish
    from penstock.pipeline.lake.tables import TABLES
    from penstock.pipeline.session import open_session

    place = Lake(lake)
    place.origin()
    spark = open_session("penstock compact", master, parse_settings(conf))
    try:
        for table in TABLES.values():
            fewer = compact_table(spark, place, table, everything=True)
            rows = publish(place, table)
            print(f"{table.name}: {fewer} fewer files" + f", {rows:,} rows published" * table.in_parts)
        print(f"{vacuum(place, LAKE_VACUUM_HOURS if hours is None else hours)} old files removed")
    finally:
        spark.stop()


@app.command()
def rebuild(
    table: Annotated[str, typer.Argument(help="The name of the table.")],
    lake: LakeOption = Path("lake"),
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Rebuild a table from the table of events. Stop the pipeline first."""
    from penstock.pipeline.lake.compaction import rebuild as rebuild_table
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.tables import TABLES
    from penstock.pipeline.session import open_session

    place = Lake(lake)
    place.origin()
    if table not in TABLES:
        raise LakeError(f"unknown table {table}; the tables are {', '.join(TABLES)}")
    place.take()
    spark = open_session("penstock rebuild", master, parse_settings(conf))
    try:
        print(f"{table}: {rebuild_table(spark, place, TABLES[table]):,} rows")
    finally:
        spark.stop()
        place.release()


@app.command()
def upgrade(lake: LakeOption = Path("lake"), master: Master = "local[*]", conf: Conf = None) -> None:
    """Rewrite the tables of a lake made by an older version. `run` does this too."""
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.upgrade import upgrade as upgrade_lake
    from penstock.pipeline.session import open_session

    place = Lake(lake)
    place.origin_of_any_format()
    place.take()
    spark = open_session("penstock upgrade", master, parse_settings(conf))
    try:
        if not upgrade_lake(spark, place, print):
            print(f"{place.path} already has the current format")
    finally:
        spark.stop()
        place.release()


@app.command()
def adopt(
    lake: LakeOption = Path("lake"),
    url: Url = None,
    data: Data = None,
    token: Token = "",
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Cut a lake back to the log of a broker that was restored from a backup, and go on with that."""
    from penstock.pipeline.lake.adoption import adopt as adopt_log
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.session import open_session

    place = Lake(lake)
    place.origin()
    extents = _logs(_source(url, data, token)).extents()
    place.take()
    spark = open_session("penstock adopt", master, parse_settings(conf))
    try:
        if adopt_log(spark, place, extents, print):
            print("the lake is one of this log now: go on with penstock pipeline run")
        else:
            print(f"{place.path} already is the lake of this log")
    finally:
        spark.stop()
        place.release()


@app.command()
def replay(
    where: Annotated[str, typer.Option("--where", help="Which messages: a condition on the table messages.")],
    queue: Annotated[str, typer.Option("--to", help="The queue to publish them to, as new messages.")],
    lake: LakeOption = Path("lake"),
    url: Url = None,
    token: Token = "",
    master: Master = "local[*]",
    conf: Conf = None,
) -> None:
    """Publish messages of the lake to a queue again: all of them, or none."""
    from penstock.pipeline.lake.directory import Lake
    from penstock.pipeline.lake.sql import replay as replay_messages
    from penstock.pipeline.session import open_session

    place = Lake(lake)
    place.origin()
    spark = open_session("penstock replay", master, parse_settings(conf))
    try:
        print(f"{replay_messages(spark, place, where, queue, _source(url, None, token)):,} messages sent to {queue}")
    finally:
        spark.stop()


# ── Source and settings ───────────────────────────────────────────────────────────────────────────────────


def _source(url: str | None, data: Path | None, token: str) -> dict[str, str]:
    """Options of `format("penstock")`."""
    if url and data:
        raise OptionError("set either --url or --data, not both")
    if data:
        return {"path": str(data.absolute())}
    # The variable is read here and not by typer, so that it does not conflict with --data.
    broker = url or os.environ.get("PENSTOCK_URL") or DEFAULT_URL
    # As options, because executors on other machines have another environment.
    named = {"token": token} | {option: os.environ.get(variable, "") for option, variable in _TLS_VARIABLES.items()}
    return {"url": broker} | {option: text for option, text in named.items() if text}


def _logs(source: dict[str, str]) -> Any:
    from penstock.pipeline.source.options import parse_options
    from penstock.pipeline.source.shards import ShardLogs

    return ShardLogs(parse_options(source))


def parse_settings(conf: list[str] | None) -> dict[str, str]:
    """Settings of Spark from texts of the form KEY=VALUE. Raises `OptionError`."""
    settings = {}
    for setting in conf or []:
        name, equals, value = setting.partition("=")
        if not equals:
            raise OptionError(f"--conf {setting} must have the form KEY=VALUE")
        settings[name] = value
    return settings


# ── Display ───────────────────────────────────────────────────────────────────────────────────────────────


class _View:
    """Shows progress: a table that is redrawn on a terminal, otherwise one line for each batch."""

    def __init__(self, lake: Path, logs: Any) -> None:
        self._lake = lake
        self._logs = logs
        self._console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
        self._recent: deque[Any] = deque(maxlen=_RATES)
        self._rows: dict[str, int] = {}
        self._doing = ""
        self._stopping = False
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> _View:
        if self._live:
            self._live.__enter__()
        else:
            self._console.print(f"filling {self._lake}")
        self.refresh()
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._live:
            self.refresh()
            self._live.__exit__(*raised)

    def doing(self, what: str) -> None:
        """Show a slow step of the start. May be called in any thread."""
        if not self._live and not self._recent and not self._stopping:
            self._console.print(what)
        self._doing = what

    def note(self, what: str) -> None:
        """Show a line that stays."""
        self._console.print(what)

    def stopping(self) -> None:
        self._stopping = True
        self._doing = "stopping: finishing the current batch; a second Ctrl-C drops it"
        self._recent.clear()
        self.refresh()

    def written(self, what: Any) -> None:
        """Show what a batch has written. Called in the thread of the query."""
        self._recent.append(what)
        for name, rows in what.rows.items():
            self._rows[name] = self._rows.get(name, 0) + rows
        if not self._live:
            self._console.print(
                f"batch {what.batch}: {what.events} events up to offset {what.end} in {what.seconds:.1f} s,"
                f" {_lag_text(what)} after they happened"
            )

    def refresh(self) -> None:
        if self._live:
            self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        head = Text.assemble(("penstock pipeline", "bold"), f"   {self._lake}")
        if not self._recent:
            return Group(head, Text(self._doing, style="dim"))
        last = self._recent[-1]
        seconds = sum(what.seconds for what in self._recent)
        rate = sum(what.events for what in self._recent) / max(seconds, 0.001)
        grid = Grid(box=SIMPLE_HEAD)
        grid.add_column("table")
        for name in ("rows in the last batch", "rows since the start"):
            grid.add_column(name, justify="right")
        for name, rows in self._rows.items():
            grid.add_row(name, f"{last.rows.get(name, 0):,}", f"{rows:,}")
        facts = (
            f"batch {last.batch}   offset {last.end:,}   behind the log by {self._behind(last.end)}"
            f"   lag {_lag_text(last)}   {rate:,.0f} events/s during batches"
        )
        return Group(head, Text(facts), grid)

    def _behind(self, end: int) -> str:
        try:
            return f"{max(0, sum(extent.end for extent in self._logs.extents()) - end):,} records"
        except BrokerError:
            return "(no answer)"


def _lag(what: Any) -> float:
    """Seconds between the last event of a batch and its commit to the tables."""
    lag: float = (what.at - what.newest).total_seconds()
    return max(0.0, lag)


def _lag_text(what: Any) -> str:
    """Seconds, as long as they say something: a lake that is filled for the first time is days behind."""
    lag = _lag(what)
    return f"{lag:.1f} s" if lag < _LAG_SECONDS_MAX else duration(lag)
