"""One Spark session for all tests, and a broker with a past."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.broker import Broker
from tests.history import make_history, make_queue, publish

JAVA_VERSION_MIN = 17


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as a user has it: nothing of ours is registered by hand."""
    if java_version() < JAVA_VERSION_MIN:
        pytest.skip(f"Spark needs Java {JAVA_VERSION_MIN} or newer: make java installs it where it can")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    settings: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }
    session = SparkSession.builder.master("local[2]").appName("penstock-tests").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a log of several segments, in which nothing happens any more."""
    broker = Broker(tmp_path_factory.mktemp("past") / "data", "log.segment_bytes=65536").start()
    make_history(broker)
    make_queue(broker, "work")
    for number in range(20):
        publish(broker, "work", *[b"%d" % number * 500] * 10)
    yield broker
    broker.stop()


@pytest.fixture(params=["path", "url"])
def where(request: pytest.FixtureRequest, past: Broker) -> dict[str, str]:
    """Both ways to that log, as options."""
    return {"path": str(past.data)} if request.param == "path" else {"url": url_of(past)}


def java_version() -> int:
    """0: there is none."""
    home = os.environ.get("JAVA_HOME")
    try:
        command = [str(Path(home, "bin", "java")) if home else "java", "-version"]
        told = subprocess.run(command, capture_output=True, check=True, text=True).stderr
    except (OSError, subprocess.CalledProcessError):
        return 0
    match = re.search(r'version "(\d+)', told)
    return int(match[1]) if match else 0


def url_of(broker: Broker) -> str:
    host, port = broker.http
    return f"http://{host}:{port}"
