"""Spark with tokens that are for some queues and topics only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import BrokerError
from penstock.pipeline.source.options import parse_options
from penstock.pipeline.source.queue import QueueStreamReader
from tests.pipeline.conftest import url_of
from tests.pipeline.source.test_events import last_lines
from tests.support.audit_records import bearer
from tests.support.broker import Broker

ADMIN = "settings-secret"


class Guarded(NamedTuple):
    broker: Broker
    tokens: dict[str, str]

    def options(self, token: str) -> dict[str, str]:
        return {"url": url_of(self.broker), "token": self.tokens[token]}

    def published(self, queue: str) -> int:
        return int(self.broker.request("GET", f"/v1/queues/{queue}", bearer(ADMIN)).json()["status"]["last_sequence"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker with the queues `mine` and `other`, and tokens for `mine`."""
    broker = Broker(tmp_path_factory.mktemp("guarded") / "data", f"auth.tokens={ADMIN}").start()
    tokens: dict[str, str] = {}
    for name in ("mine", "other"):
        broker.request("PUT", f"/v1/queues/{name}", bearer(ADMIN))
        broker.request("POST", f"/v1/queues/{name}/messages", bearer(ADMIN), b'{"message": "x"}')
    for name, scope in (("all", "read:*"), ("some", "read,consume:mine"), ("writer", "publish:mine,mine.eu")):
        body = json.dumps({"scopes": [scope]}).encode()
        tokens[name] = broker.request("PUT", f"/v1/tokens/{name}", bearer(ADMIN), body).json()["token"]
    yield Guarded(broker, tokens)
    broker.stop()


def test_a_token_reads_the_whole_log_or_none_of_it(spark: SparkSession, guarded: Guarded) -> None:
    reader = spark.read.format("penstock").option("columns", "queue")
    assert reader.options(**guarded.options("all"), queue="mine").load().count() > 0
    with pytest.raises(PySparkException) as error:
        reader.options(**guarded.options("some"), queue="mine").load().collect()
    assert "with 403: access denied: read on *" in last_lines(error).splitlines()[-1]


def test_a_token_takes_messages_of_its_own_queue_only(guarded: Guarded) -> None:
    given = guarded.options("some") | {"read": "queue"}
    mine, other = (QueueStreamReader(parse_options(given | {"queue": queue})) for queue in ("mine", "other"))
    assert mine.latestOffset(mine.initialOffset(), mine.getDefaultReadLimit())["claimed"]
    with pytest.raises(BrokerError, match="with 403: access denied: consume on other"):
        other.latestOffset(other.initialOffset(), other.getDefaultReadLimit())
    for reader in (mine, other):
        reader.stop()


def test_a_token_writes_to_its_own_queues_and_topics_only(spark: SparkSession, guarded: Guarded) -> None:
    before = guarded.published("mine"), guarded.published("other")
    save(spark.sql("select 'x' as body, 'mine.eu' as topics"), guarded)
    assert guarded.published("mine") == before[0] + 1
    for row, needed in (
        ("'x' as body, 'other' as queue", "publish on other"),
        ("'x' as body, 'mine.us' as topics", "publish on mine.us"),
    ):
        with pytest.raises(PySparkException) as error:
            save(spark.sql(f"select {row}"), guarded)
        assert f"access denied: {needed}; " in last_lines(error)
    assert (guarded.published("mine"), guarded.published("other")) == (before[0] + 1, before[1])


def save(frame: DataFrame, guarded: Guarded) -> None:
    frame.write.format("penstock").options(**guarded.options("writer")).mode("append").save()
