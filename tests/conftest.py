"""Brokers for tests: one shared by the session, or one of a test's own with the settings it needs."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.broker import Broker, StartBroker

if TYPE_CHECKING:
    from tests.support.postgres import Postgres

_SPARK_SECONDS_MAX = 900

# Timing never decides a test: a machine may be busy.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# Brokers start hundreds of times: none compiles its sources again, whatever the environment says.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell that starts the tests in the background lets them ignore Ctrl-C, and so all processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that tests share: use queue names of your own."""
    shared = Broker(tmp_path_factory.mktemp("shared-broker") / "data").start()
    yield shared
    shared.stop()


@pytest.fixture
def start_broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[StartBroker]:
    """Starts brokers of a test's own: `start_broker("http.idle_seconds=1")`."""
    started: list[Broker] = []
    request.node.own_brokers = started

    def start(*settings: str, data: Path | None = None, **options: Any) -> Broker:
        own = Broker(data or tmp_path / f"data-{len(started)}", *settings, **options)
        started.append(own)
        return own.start()

    yield start
    for own in started:
        if own.running:
            own.stop()


@pytest.fixture(scope="session")
def java() -> Iterator[None]:
    """For tests of Spark: they are skipped where there is no Java."""
    from penstock.pipeline.session import JAVA_VERSION_MIN, java_version
    from tests.support.spark import environment

    if java_version() < JAVA_VERSION_MIN:
        pytest.skip(f"Spark needs Java {JAVA_VERSION_MIN} or newer: make java installs it where it can")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL that tests share. They are skipped where there is none."""
    from tests.support import postgres

    if not (postgres.program("postgres") and postgres.program("initdb")):
        pytest.skip("no PostgreSQL here; install it by make postgres, or on Debian: apt-get install postgresql")
    with postgres.started() as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a busy machine Spark alone takes minutes to start."""
    for item in items:
        if "java" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SPARK_SECONDS_MAX))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows what its brokers said."""
    report = yield
    if report.failed:
        funcargs: dict[str, Any] = getattr(item, "funcargs", {})
        brokers = [*getattr(item, "own_brokers", []), *filter(None, [funcargs.get("broker")])]
        for number, each in enumerate(brokers):
            report.sections.append((f"standard error of broker {number}", each.log()))
    return report
