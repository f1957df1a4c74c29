"""One Spark session for all tests, and a broker with a past."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline.session import open_session
from tests.support.broker import Broker
from tests.support.event_history import make_history, make_queue, publish
from tests.support.lakes import FilledLake
from tests.support.traffic import LATER_SECONDS, make_traffic


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as a user has it: nothing of ours is registered by hand."""
    folder = tmp_path_factory.mktemp("spark")
    folders = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    session = open_session("penstock-tests", "local[2]", folders)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a log of several segments, in which nothing happens any more."""
    settings = ("log.segment_bytes=65536", f"topics.lease_seconds={LATER_SECONDS}")
    broker = Broker(tmp_path_factory.mktemp("past") / "data", *settings).start()
    make_history(broker)
    make_traffic(broker)
    make_queue(broker, "work")
    for number in range(20):
        publish(broker, "work", *[b"%d" % number * 500] * 10)
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def past_lake(spark: SparkSession, past: Broker, tmp_path_factory: pytest.TempPathFactory) -> FilledLake:
    """The lake of that broker's log, filled in several batches."""
    filled = FilledLake(spark, tmp_path_factory.mktemp("past-lake") / "lake", url=url_of(past))
    filled.fill(maxEventsPerTrigger=450)
    return filled


@pytest.fixture(params=["path", "url"])
def where(request: pytest.FixtureRequest, past: Broker) -> dict[str, str]:
    """Both ways to that log, as options."""
    return {"path": str(past.data)} if request.param == "path" else {"url": url_of(past)}


def url_of(broker: Broker) -> str:
    host, port = broker.http
    return f"http://{host}:{port}"
