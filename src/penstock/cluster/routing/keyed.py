"""The objects and keys that commands are about: one row for each command that may have some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from penstock.engine.engine import Engine
from penstock.model.commands import (
    AdmitRows,
    Command,
    DescribeObject,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishRun,
    PublishTopics,
    TakeRows,
)
from penstock.model.schedules import RunSchedule

Key = tuple[str, bytes]  # An object and a key.


def keys_of(command: Command, engine: Engine) -> Sequence[Key]:
    """Each once. Versions of these are compared, or added, when the command is decided."""
    row = KEYED.get(type(command))
    return list(dict.fromkeys(row(command, engine))) if row else ()


def _messages(command: Publish | PublishTopics) -> list[Key]:
    return [(each.object, each.key) for each in command.messages if each.key and each.object]


def _rows(command: Publish | PublishRun | PublishTopics | None) -> list[Key]:
    return _messages(command) if isinstance(command, Publish | PublishTopics) else []


def _schedule(command: RunSchedule, engine: Engine) -> list[Key]:
    planned = engine.schedules.by_name.get(command.name)
    wanted = planned.definition if planned else None
    return [(wanted.object, wanted.key)] if wanted and wanted.object and wanted.key else []


KEYED: dict[type[Command], Callable[[Any, Engine], Iterable[Key]]] = {
    Publish: lambda command, _: _messages(command),
    PublishTopics: lambda command, _: _messages(command),
    PublishOnce: lambda command, _: _messages(command.publish),
    PublishInTurn: lambda command, _: [key for each in command.publishes for key in _rows(each)],
    AdmitRows: lambda command, _: _rows(command.publish),
    TakeRows: lambda command, _: _rows(command.publish),
    RunSchedule: _schedule,
    DescribeObject: lambda command, _: [(command.object, command.key)],
}
