"""A worker of `python -m tests`: a pytest that is dealt its files one by one, while it runs.

It asks over a socket whenever it has nothing left to do, and gets the paths of files that are collected and run
together. So each file is collected once, and what a session shares (a broker, Spark, PostgreSQL) is started by a
worker that needs it, and lives until nothing is left. It reports what has been used so far: processor time of this
process and of all that it has started, whether they have ended or live on.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

import msgspec
import pytest
from _pytest.runner import runtestprotocol

_TICKS = os.sysconf("SC_CLK_TCK")


class Report(msgspec.Struct):
    """What has happened up to now."""

    time: float  # Of the clock that all processes share.
    processor: float = 0.0  # Seconds.
    outcomes: dict[str, int] = {}
    failed: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dealt-over", type=int, metavar="SOCKET", help="its number")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Dealt(socket.socket(fileno=config.getoption("--dealt-over"))))


class _Dealt:
    def __init__(self, dealer: socket.socket) -> None:
        self._dealer: IO[str] = dealer.makefile("rw")
        self._outcomes: Counter[str] = Counter()
        self._failed: list[str] = []
        self._collected = 0
        self._folders: dict[Path, pytest.Collector] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> bool:
        """Not yet."""
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_directory(
        self, path: Path
    ) -> Generator[None, pytest.Collector | None, pytest.Collector | None]:
        """The same whenever one of its files comes: fixtures of its conftest.py belong to it."""
        made = yield
        return self._folders.setdefault(path, made) if made else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        between = _Between.from_parent(session, name="what the tests of this worker have shared")
        self._report()
        for paths in iter(lambda: self._dealer.readline().split(), []):
            self._run(session, paths, between)
        for each in runtestprotocol(between, log=False, nextitem=None):
            if each.failed:  # What is shared has not ended as it should.
                session.config.hook.pytest_runtest_logreport(report=each)
        self._report()
        return True

    def _run(self, session: pytest.Session, paths: list[str], between: _Between) -> None:
        items = list(session.perform_collect(paths))
        self._collected = session.testscollected = self._collected + len(items)
        for item, following in zip(items, [*items, between][1:], strict=True):
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._report()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._count(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._count(report)

    def _count(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        self._outcomes[report.outcome] += 1
        if report.failed:
            self._failed.append(report.nodeid)

    def _report(self) -> None:
        """Which also asks for more."""
        report = Report(time.monotonic(), processor_seconds(), self._outcomes, self._failed)
        self._dealer.write(msgspec.json.encode(report).decode() + "\n")
        self._dealer.flush()


class _Between(pytest.Item):
    """Follows each file. Only what the whole session shares lives on, until it is run itself, at the end."""

    def runtest(self) -> None:
        pass


def processor_seconds() -> float:
    """What this process has used, and all that it has started."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used) + sum(map(_seconds_of, _living(os.getpid())))


def _living(process: int) -> Iterator[int]:
    """Its children, and theirs."""
    try:
        lists = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
    except OSError:
        return  # It has ended.
    for child in map(int, " ".join(lists).split()):
        yield child
        yield from _living(child)


def _seconds_of(process: int) -> float:
    """With its children that have ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS
