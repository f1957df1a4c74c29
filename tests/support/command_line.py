"""The command line as a user runs it: a process of its own, with pipes or a terminal, and no configuration."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from penstock.cli.verbs import VERBS, load

SECONDS_MAX = 60
COMMAND = [sys.executable, "-m", "penstock.cli"]


def environment(**variables: str) -> dict[str, str]:
    """What a verb sees of the environment: wide lines, no profile of whoever runs the tests."""
    return os.environ | {"COLUMNS": "200", "XDG_CONFIG_HOME": "/nonexistent"} | variables


def penstock(*arguments: str, given: str | bytes | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end. `given` is its standard input."""
    return subprocess.run(
        [*COMMAND, *arguments],
        input=given.decode() if isinstance(given, bytes) else given,
        stdin=subprocess.DEVNULL if given is None else None,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env=environment(**variables),
    )


def all_verbs() -> list[tuple[str, ...]]:
    """Every verb with the verbs below it."""
    return [(), *(path for name in VERBS for path in _below((name,), load(name)))]


def _below(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from _below((*path, name), child)
