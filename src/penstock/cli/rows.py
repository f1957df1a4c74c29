"""Rows of a query: a table if it fits the terminal, else each value on a line of its own; or JSON, or CSV."""

from __future__ import annotations

import csv
import datetime
import shutil
import sys
from decimal import Decimal
from typing import Any

from penstock.cli import output
from penstock.cli.messages import body_fields

_CELL_CHARACTERS = 40  # A table is for short values,
_VALUE_CHARACTERS = 2000  # and a line of its own for longer ones.
_GAP = 2

Rows = list[list[Any]]


def rows_of(answer: Any) -> Rows:
    """The rows of an Arrow table. A sum of whole numbers is a whole number, however many digits it may have."""
    columns = [[_whole(value) for value in column.to_pylist()] for column in answer.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal) and value.as_tuple().exponent == 0 else value


def is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def show(names: list[str], rows: Rows, *, vertical: bool = False) -> None:
    cells = [[_line(text(value), _VALUE_CHARACTERS) for value in row] for row in rows]
    longest = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    width = shutil.get_terminal_size().columns
    if vertical or max(longest) > _CELL_CHARACTERS * 2 or sum(longest) + _GAP * len(longest) > width:
        _show_vertically(names, cells)
        return
    output.table(names, cells, numbers=[any(is_number(row[at]) for row in rows) for at in range(len(names))])


def _show_vertically(names: list[str], cells: list[list[str]]) -> None:
    width = max(map(len, names))
    for number, row in enumerate(cells, 1):
        print(f"─── {number} ───")
        for name, cell in zip(names, row, strict=True):
            print(f"{name:<{width}}  {cell}".rstrip())


def write_json(names: list[str], rows: Rows) -> None:
    for row in rows:
        output.emit(_plain(dict(zip(names, row, strict=True))))


def write_csv(names: list[str], rows: Rows) -> None:
    writer = csv.writer(sys.stdout)
    writer.writerow(names)
    writer.writerows([[text(value) for value in row] for row in rows])


def text(value: Any) -> str:
    """A value for people to read, and for CSV."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, datetime.datetime):
        return value.isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, dict):
        return ", ".join(f"{name} {text(each)}" for name, each in value.items() if each is not None)
    if isinstance(value, list):
        return "; ".join(_pair(each) for each in value)
    return str(value)


def _pair(each: Any) -> str:
    """An element of a list; a map is a list of pairs."""
    return f"{text(each[0])}: {text(each[1])}" if isinstance(each, tuple) else text(each)


def _line(whole: str, characters: int) -> str:
    line = "".join(each if each.isprintable() else "·" for each in whole[: characters + 1])
    return line if len(line) <= characters else line[: characters - 1] + "…"


def _plain(value: Any) -> Any:
    """A value for JSON. Bytes that are not UTF-8 get the name of their column with `_base64`."""
    if isinstance(value, dict):
        fields: dict[str, Any] = {}
        for name, each in value.items():
            if isinstance(each, bytes):
                fields |= {name + known.removeprefix("message"): data for known, data in body_fields(each).items()}
            else:
                fields[name] = _plain(each)
        return fields
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return _plain({str(name): each for name, each in value})
        return [_plain(each) for each in value]
    return float(value) if isinstance(value, Decimal) else value
