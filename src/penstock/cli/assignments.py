"""Settings on the command line: `lease=60 redrive_policy.max_receives=5 keep=all`."""

from __future__ import annotations

import json
from collections.abc import Callable
from inspect import Parameter, signature
from typing import Annotated, Any, TypeVar

import typer

from penstock.cli.exits import CommandError, Exit

T = TypeVar("T")

Settings = Annotated[
    list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Settings: docs/native/queues.md lists them.")
]


def with_settings(change: Callable[..., T], assignments: list[str] | None, *arguments: Any, **named: Any) -> T:
    """Call a method of the client. What it has as an argument already, or does not know, is no setting."""
    settings, parameters = parsed(assignments), signature(change).parameters
    given = {"self", *named, *[*parameters][: len(arguments)]}
    takes_any = any(each.kind == Parameter.VAR_KEYWORD for each in parameters.values())
    for name in settings:
        if name in given or not (takes_any or name in parameters):
            raise CommandError(f"{name} cannot be given as a setting", Exit.USAGE)
    return change(*arguments, **named, **settings)


def parsed(assignments: list[str] | None) -> dict[str, Any]:
    """The document that they make. A value is JSON if it can be, else text; a dot leads into a document."""
    document: dict[str, Any] = {}
    for name, value in map(_split, assignments or []):
        *path, last = name.split(".")
        place = document
        for step in path:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise CommandError(f"{step} is given as a value, so {name} cannot be", Exit.USAGE)
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
