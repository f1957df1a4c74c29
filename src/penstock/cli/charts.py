"""Charts of a query: bars in the terminal, or a picture. The numeric columns are drawn over the first one."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from penstock.cli.extras import how_to_install
from penstock.cli.rows import Rows, is_number, text
from penstock.errors import OptionError

_BAR_CELLS = 50
_EIGHTHS = " ▏▎▍▌▋▊▉"


def bars(names: list[str], rows: Rows) -> None:
    """Draw one block of bars for each numeric column."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for at in _numbers(names, rows):
        highest = float(max((row[at] or 0 for row in rows), default=0)) or 1.0
        grid = Table(box=None, title=names[at], title_justify="left", show_header=False)
        for row in rows:
            grid.add_row(Text(text(row[0])), Text(_bar(float(row[at] or 0) / highest)), Text(text(row[at])))
        console.print(grid)


def _bar(share: float) -> str:
    eighths = round(max(0.0, share) * _BAR_CELLS * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def draw(path: Path, names: list[str], rows: Rows, title: str) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise OptionError(
            f"--png needs matplotlib: {how_to_install(error)}; or use --plot for the terminal"
        ) from None
    figure = Figure(figsize=(10, 5), layout="constrained")
    axes = figure.add_subplot(title=title, xlabel=names[0])
    along: list[Any] = [
        row[0] if isinstance(row[0], datetime.date) or is_number(row[0]) else text(row[0]) for row in rows
    ]
    for at in _numbers(names, rows):
        axes.plot(along, [row[at] for row in rows], marker=".", label=names[at])
    axes.legend()
    figure.savefig(path)


def _numbers(names: list[str], rows: Rows) -> list[int]:
    found = [at for at in range(1, len(names)) if any(is_number(row[at]) for row in rows)]
    if not found:
        raise OptionError("nothing to draw: the query needs a numeric column after the first one")
    return found
