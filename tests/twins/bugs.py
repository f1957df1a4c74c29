"""Bugs seeded on purpose, each in the code for several shards: programs must show each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

from penstock.model import commands
from penstock.server.front import logs
from penstock.server.shards import destinations, router
from penstock.server.shards.shard_map import ShardMap


def _at_home(command: Any, shards: ShardMap) -> int:
    return shards.of_name(command.name)


def _row(command: type[Any], row: Callable[..., Any]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.dict(destinations.DESTINATIONS, {command: row})


BUGS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "a queue that is deleted stays in the policies of other shards": _row(commands.DeleteQueue, _at_home),
    "parts are carried out before permission is asked for": lambda: patch.object(
        router, "forbidden", lambda *_: None
    ),
    "the beginning of all logs is refused": lambda: patch.dict(
        logs._EACH, {name: start for name, start in logs._EACH.items() if name != "0"}, clear=True
    ),
}
