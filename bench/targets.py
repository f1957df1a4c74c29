"""Types of a run: its plan, the figures of a server, and the description of a server."""

import importlib.util
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.driver import Count, Latency

IN_FLIGHT = 256


@dataclass(frozen=True)
class Plan:
    """How long to measure, and where the servers may write."""

    seconds: float
    warm_seconds: float
    scratch: Path


@dataclass(frozen=True)
class Figures:
    """One measurement of one server. Figures that were not measured are absent."""

    publish: Count
    consume: Count | None = None
    half_rate: Latency | None = None
    alone: Latency | None = None


@dataclass(frozen=True)
class Target:
    """A server that can be measured, and how to install it."""

    name: str  # For `--only`.
    title: str  # For the table.
    measure: Callable[[Plan], Figures]
    find: Callable[[], Path | None]  # Returns its program, if it is installed.
    package: str | None = None  # The Debian package that has it.
    note: str = ""  # What a reader must know to compare it fairly.


class RanDryError(Exception):
    """There were too few messages to consume, so the rate would be that of the supply."""


def check_supply(stored: int, consume: Count) -> None:
    """A consumer that waits for messages would look slow."""
    if consume.with_warm_up + IN_FLIGHT > stored:
        raise RanDryError(f"{stored} messages were stored, {consume.with_warm_up} consumed")


def program(*names: str) -> Path | None:
    """The first of these that exists: a path, or a program on the search path or next to the interpreter."""
    places = [str(Path(sys.executable).parent), "/usr/local/sbin", "/usr/sbin"]
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=":".join(places))
        if found:
            return Path(found)
    return None


def importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
