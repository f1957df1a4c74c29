"""`penstock log`: inspect and verify a data directory, without a broker.

What the verbs need is imported when they run: their help does not wait for numpy and Arrow.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.shards import Shard, directories, one_directory, shards_in

if TYPE_CHECKING:
    from penstock.storage.directory import DataDirectory
    from penstock.storage.inspect import Report

app = typer.Typer(help="Inspect and verify a data directory.", no_args_is_help=True)

Directory = Annotated[Path, typer.Argument(help="The data directory.", exists=True, file_okay=False)]


@app.command()
def inspect(
    directory: Directory,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    events: Annotated[bool, typer.Option("--events", help="Print the events, one JSON object per line.")] = False,
    start: Annotated[int, typer.Option("--from", min=0, help="With --events: the first offset.")] = 0,
    count: Annotated[int | None, typer.Option("--count", min=0, help="With --events: how many at most.")] = None,
    shard: Shard = None,
) -> None:
    """Show what a data directory contains. This changes nothing and takes no lock."""
    if events:
        _print_events(one_directory(directory, shard), start, count)
    elif as_json:
        _print_json(directories(directory, shard))
    else:
        for data in directories(directory, shard):
            _print_report(data)


def _print_events(data: DataDirectory, start: int, count: int | None) -> None:
    from penstock.cli.log.events import event_lines

    for line in itertools.islice(event_lines(data, start), count):
        sys.stdout.write(line)


def _print_json(found: list[DataDirectory]) -> None:
    """One object; for several shards it has a list of them."""
    from penstock.cli import output

    inspected = [_inspected(data) for data in found]
    output.emit(inspected[0] if len(inspected) == 1 else {"shards": inspected})


def _inspected(data: DataDirectory) -> dict[str, Any]:
    from penstock.cli.log.state import examine, queues

    report, engine = examine(data)
    return {
        "verdict": report.severity.name.lower(),
        "report": report,
        "queues": queues(engine) if engine else None,  # None: the state cannot be rebuilt.
    }


def _print_report(data: DataDirectory) -> None:
    from rich.console import Console

    from penstock.cli.log.report import show
    from penstock.cli.log.state import examine, queues

    report, engine = examine(data)
    show(Console(), report, queues(engine) if engine else None)


@app.command()
def verify(directory: Directory, shard: Shard = None) -> None:
    """Check every byte. Exit code 0: whole; 1: a torn tail, which the next start cuts off; 2: damaged. Of several
    shards, the worst counts."""
    found = directories(directory, shard)
    raise typer.Exit(max(_verify(data, f"{data.path}: " if len(found) > 1 else "") for data in found))


def _verify(data: DataDirectory, heading: str) -> int:
    from rich.console import Console

    from penstock.cli.log.report import line, say_held, verdict
    from penstock.errors import DataDirectoryError
    from penstock.storage.inspect import Severity

    console = Console(highlight=False, soft_wrap=True)
    try:
        report = _examine_with_progress(data)
    except DataDirectoryError as error:
        console.print(f"{heading}damaged: {error}", markup=False)
        return int(Severity.DAMAGED)
    say_held(console, report)
    for problem in report.problems:
        console.print(line(problem), markup=False)
    console.print(heading + verdict(report), markup=False)
    return int(report.severity)


def _examine_with_progress(data: DataDirectory) -> Report:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from penstock.cli.log.state import examine
    from penstock.storage.inspect import bytes_to_read

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("checking", total=bytes_to_read(data))
        return examine(data, lambda size: progress.advance(task, size))[0]


@app.command()
def salvage(
    directory: Directory,
    out: Annotated[Path, typer.Argument(help="The directory to make: a new path, or an empty directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    shard: Shard = None,
) -> None:
    """Make a directory that starts from a damaged one, and list what is lost by queue and sequence."""
    from penstock.cli import output
    from penstock.cli.log.losses import lines
    from penstock.cli.log.salvage import salvage, salvage_shards

    stored = shards_in(directory) if shard is None else None
    with output.counting("reading") as progress:
        if stored:
            losses = salvage_shards(directory, stored, out, progress)
        else:
            losses = [salvage(one_directory(directory, shard).path, out, progress.expect, progress.advance)]
    if as_json:
        output.emit({"shards": losses} if stored else losses[0])
        return
    for each in losses:
        for text in lines(each):
            print(text)


@app.command()
def rebuild_history(
    directory: Directory,
    progress: Annotated[bool, typer.Option(help="Show a progress bar, on a terminal.")] = True,
    shard: Shard = None,
) -> None:
    """Rebuild the Object History from the log. Stop the broker first."""
    from rich.console import Console

    from penstock.cli.log.rebuild import rebuild

    console, found = Console(highlight=False, soft_wrap=True), directories(directory, shard)
    for data in found:
        heading = f"{data.path}: " if len(found) > 1 else ""
        for line in rebuild(data, show=progress):
            console.print(heading + line, markup=False)
