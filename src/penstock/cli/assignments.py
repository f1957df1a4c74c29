"""Settings on the command line: `lease=60 redrive_policy.max_receives=5 keep=all`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from penstock.cli.exits import CommandError, Exit

Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings: docs/native/queues.md lists them.")
]


def parsed(assignments: list[str] | None) -> dict[str, Any]:
    """The document that they make. A value is JSON if it can be, else text; a dot leads into a document."""
    document: dict[str, Any] = {}
    for name, value in map(_split, assignments or []):
        *path, last = name.split(".")
        place = document
        for step in path:
            place = place.setdefault(step, {})
        place[last] = _value(value)
    return document


def texts(assignments: list[str] | None) -> dict[str, str]:
    """The same where every value is text: 441 is what somebody looks for, and no number. Quotes are left out."""
    found = {name: (value, _value(value)) for name, value in map(_split, assignments or [])}
    return {name: value if isinstance(value, str) else written for name, (written, value) in found.items()}


def _split(assignment: str) -> tuple[str, str]:
    name, separator, value = assignment.partition("=")
    if not (name and separator):
        raise CommandError(f"{assignment} is not a setting; write NAME=VALUE", Exit.USAGE)
    return name, value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
