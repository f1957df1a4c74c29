"""How verbs answer: tables for people, JSON for programs, questions, progress, and what is shown again and again.

On a terminal tables are drawn; in a pipe they are plain aligned text. Standard output has only the answer; remarks,
progress and questions go to standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from penstock.storage.backup.making import Progress

Watch = Annotated[
    float | None,
    typer.Option(
        "--watch", min=0.1, metavar="[SECONDS]", help="Show it again every 2 seconds, or as often as given."
    ),
]
_WATCH_SECONDS = "2"


def emit(value: Any) -> None:
    """One JSON value, on a line of its own."""
    sys.stdout.write(json_text(value) + "\n")
    sys.stdout.flush()


def say(sentence: str) -> None:
    """A remark beside the answer."""
    print(sentence, file=sys.stderr)


def done(as_json: bool, value: Any, sentence: str) -> None:
    """The end of a verb that changes something."""
    if as_json:
        emit(value)
    else:
        print(sentence)


def hidden(secret: str) -> str:
    """What may be shown of a secret."""
    return f"{secret[:2]}…" if secret else ""


def shown(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    if isinstance(value, list | tuple) and not any(isinstance(each, dict | list) for each in value):
        return ", ".join(shown(each) for each in value)
    if isinstance(value, dict | list | tuple):
        return json_text(value)
    return str(value)


def json_text(value: Any) -> str:
    """A document as it can be copied: with its quotes, its nesting, and numbers as they are."""
    import msgspec

    return msgspec.json.encode(value).decode()


def table(
    names: Sequence[str],
    rows: Iterable[Sequence[Any]],
    styles: Sequence[str] = (),
    numbers: list[bool] | None = None,
) -> None:
    """A table: drawn on a terminal, aligned text in a pipe. Columns of numbers are aligned to the right: those that
    `numbers` names, or that have any."""
    found = [list(row) for row in rows]
    numbers = numbers or [any(is_number(row[at]) for row in found) for at in range(len(names))]
    if sys.stdout.isatty():
        from rich.console import Console

        Console(highlight=False).print(drawn(names, found, numbers, styles))
    else:
        _write_plain([list(names), *found], numbers)


def drawn(names: Sequence[str], rows: list[list[Any]], numbers: list[bool], styles: Sequence[str] = ()) -> Any:
    """A table of rich."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for at, name in enumerate(names):
        style = styles[at] if at < len(styles) else None
        grid.add_column(name, justify="right" if numbers[at] else "left", style=style, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(shown(value)) for value in row))
    return grid


def _write_plain(rows: list[list[Any]], numbers: list[bool]) -> None:
    texts = [[shown(value) for value in row] for row in rows]
    widths = [max(len(row[at]) for row in texts) for at in range(len(numbers))]
    for row in texts:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(row, widths, numbers, strict=True)
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def styled(*parts: tuple[str, str]) -> None:
    """One line of texts, each with a style that only a terminal shows."""
    if not sys.stdout.isatty():
        sys.stdout.write("".join(text for text, _ in parts).rstrip() + "\n")
        return
    from rich.console import Console
    from rich.text import Text

    Console(highlight=False, soft_wrap=True).print(Text.assemble(*parts))


def facts(document: dict[str, Any]) -> None:
    """One thing: a name and a value a line."""
    width = max(map(len, document))
    for name, value in document.items():
        styled((f"{name:<{width}}  ", "bold"), (shown(value), ""))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def repeat(seconds: float | None, show: Callable[[], object]) -> None:
    """Show once, or again and again until Ctrl-C. A terminal is cleared before each."""
    if seconds is None:
        show()
        return
    while True:
        if sys.stdout.isatty():
            sys.stdout.write("\033[H\033[2J")
        show()
        sys.stdout.flush()
        time.sleep(seconds)


def with_watch_seconds(arguments: list[str]) -> Iterator[str]:
    """The command line with the seconds that follow `--watch`, where there are none."""
    for at, argument in enumerate(arguments):
        yield argument
        if argument == "--watch" and not _is_seconds(arguments[at + 1 : at + 2]):
            yield _WATCH_SECONDS


def _is_seconds(following: list[str]) -> bool:
    try:
        return float(following[0]) > 0
    except (ValueError, IndexError):
        return False


def ask(question: str, yes: bool) -> None:
    """Ask before something is lost. Without a terminal, only `--yes` is an answer."""
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise CommandError(f"{question} Nobody can be asked here: add --yes", Exit.USAGE)
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed")


@contextmanager
def progress(what: str, total: float | None, unit: str) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal; nothing elsewhere. What it yields is called with how far it has come."""
    with _bar(what, total, unit) as update:
        yield lambda done: update(completed=done)


@contextmanager
def counting(what: str, unit: str = "bytes") -> Iterator[Progress]:
    """A bar for bytes, or something else, whose number is known only later."""
    from penstock.storage.backup.making import Progress

    with _bar(what, None, unit) as update:
        yield Progress(lambda total: update(total=total), lambda size: update(advance=size))


@contextmanager
def _bar(what: str, total: float | None, unit: str) -> Iterator[Callable[..., None]]:
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda **change: bars.update(task, **change)
