"""What is measured: the plan of a run, the figures of a server, and how a server is described."""

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
    """One measurement of one server. What a server is not asked for is absent."""

    publish: Count
    consume: Count | None = None
    half_rate: Latency | None = None
    alone: Latency | None = None


@dataclass(frozen=True)
class Target:
    """A server that can be measured, and how it can be had."""

    name: str  # As `--only` knows it.
    title: str  # As the table shows it.
    measure: Callable[[Plan], Figures]
    find: Callable[[], Path | None]  # Its program, where it is installed.
    package: str | None = None  # Debian's package with it.
    note: str = ""  # What a reader must know to compare it fairly.


class RanDryError(Exception):
    """There was less to consume than could be consumed, so the rate measured the supply."""


def check_supply(stored: int, consume: Count) -> None:
    """A consumer that waits for messages would look slow."""
    if consume.with_warm_up + IN_FLIGHT > stored:
        raise RanDryError(f"{stored} messages were stored, {consume.with_warm_up} consumed")


def program(*names: str) -> Path | None:
    """The first of these that exists: a path, or a name on the search path or beside the interpreter."""
    places = [str(Path(sys.executable).parent), "/usr/local/sbin", "/usr/sbin"]
    for name in names:
        found = shutil.which(name) or shutil.which(name, path=":".join(places))
        if found:
            return Path(found)
    return None


def importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
