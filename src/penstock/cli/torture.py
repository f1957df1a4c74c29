"""`penstock torture`: traffic and faults on your own disk, and a checker over everything that the clients saw."""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from penstock.torture.run import Options, Run

_LINE_SECONDS = 30.0  # Between two lines of progress, where there is no terminal.
_STORIES_MAX = 5


def torture(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where the broker stores its data: a directory on the disk to be tried.")
    ],
    seed: Annotated[str | None, typer.Option(help="Repeats the choices of a run [default: a new one]")] = None,
    minutes: Annotated[float, typer.Option(min=0.05, help="How long faults happen.")] = 1.0,
    dialects: Annotated[
        str, typer.Option(help="Which dialects are used, separated by commas [default: all]", show_default=False)
    ] = "",
    faults: Annotated[
        str,
        typer.Option(
            help="Which faults happen, separated by commas: kill, torn, stop, clock, full, sync, flip; or none"
            " [default: all]",
            show_default=False,
        ),
    ] = "",
    rate: Annotated[float, typer.Option(min=1, help="Messages a second, all dialects together.")] = 60.0,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two faults, on average.")] = 8.0,
    count: Annotated[int, typer.Option(min=0, help="End after so many faults; 0: when the time is over.")] = 0,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt all connections. Needs penstock[tls].")] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep data and history although nothing was violated.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="For programs: a JSON document on standard output.")
    ] = False,
) -> None:
    """Run a broker under traffic and faults, and check every promise. Exit code 1: one was violated."""
    from penstock.torture import report
    from penstock.torture.run import Options, play

    chosen = seed or str(secrets.randbits(32))
    options = Options(directory / f"torture-{chosen}", chosen, minutes, rate=rate, every=every, faults_max=count)
    options = _choose(options, dialects, faults)
    _make(options.directory)
    if tls:
        options = options._replace(certificate=_certificate(options.directory))
    output.say(f"seed {chosen}, in {options.directory}")
    with _Progress() as progress:
        run = play(options, progress.show)
    _tell(run, as_json)
    if run.violations:
        for found in run.violations[:_STORIES_MAX]:
            output.say(report.story(run, found))
        again = f"penstock torture --seed {chosen} --dir {directory}"
        raise CommandError(f"{len(run.violations)} violations; {options.directory} is kept. Try again: {again}")
    if not keep:
        shutil.rmtree(options.directory)


def _make(path: Path) -> None:
    if path.exists():
        raise CommandError(f"{path} exists: remove it, or choose another --seed or --dir", Exit.USAGE)
    path.mkdir(parents=True)


def _certificate(directory: Path) -> Path:
    from penstock.cli.tls import write_pair

    certificate = directory / "penstock.pem"
    write_pair(certificate, certificate.with_suffix(".key"), ["127.0.0.1"], days=3650)
    return certificate


def _choose(options: Options, dialects: str, faults: str) -> Options:
    from penstock.torture.faults import KINDS
    from penstock.torture.traffic import DIALECTS

    if dialects:
        options = options._replace(dialects=_listed("dialect", dialects, list(DIALECTS)))
    if faults:
        options = options._replace(faults=() if faults == "none" else _listed("fault", faults, list(KINDS)))
    return options


def _listed(what: str, text: str, known: list[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in names if name not in known]:
        raise CommandError(f"unknown {what}: {', '.join(unknown)}. There are: {', '.join(known)}", Exit.USAGE)
    return names


def _tell(run: Run, as_json: bool) -> None:
    from penstock.torture import report

    if as_json:
        output.emit(report.summary(run))
        return
    for names, rows in report.tables(run):
        output.table(names, rows)
        print()
    print(report.memory(run))
    print(f"Violations: {len(run.violations)}")


class _Progress:
    """One line that changes on a terminal, and a line now and then elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.status import Status

        self._status = Status("starting", console=Console(stderr=True)) if sys.stderr.isatty() else None
        self._shown_at = 0.0

    def __enter__(self) -> _Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status:
            self._status.stop()

    def show(self, run: Run) -> None:
        from penstock.torture.report import progress

        if self._status:
            self._status.update(progress(run))
        elif run.stage.now > self._shown_at + _LINE_SECONDS:
            self._shown_at = run.stage.now
            output.say(progress(run))
