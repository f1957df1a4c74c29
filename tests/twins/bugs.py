"""Bugs seeded on purpose, each in the code for several shards: programs must show each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from unittest.mock import patch

from penstock.engine.decide import administer
from penstock.server.front import logs
from penstock.server.shards import router

BUGS: Final[dict[str, Callable[[], AbstractContextManager[Any]]]] = {
    "a queue that is deleted stays in the policies of other shards": lambda: patch.object(
        administer, "promise", lambda *_: None
    ),
    "parts are carried out before permission is asked for": lambda: patch.object(
        router, "forbidden", lambda *_: None
    ),
    "the beginning of all logs is refused": lambda: patch.dict(
        logs._EACH, {name: start for name, start in logs._EACH.items() if name != "0"}, clear=True
    ),
}
