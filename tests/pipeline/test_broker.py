"""The way of Spark to a broker with TLS: trust on the driver and the executors, and errors that say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from pyspark.sql import SparkSession

from penstock.client.trust import Trust
from penstock.errors import BrokerError, ConfigError
from penstock.pipeline.broker import Broker as Way
from penstock.pipeline.sink.options import parse_sink_options
from penstock.pipeline.source.options import parse_options
from tests.support.broker import Broker
from tests.support.certificates import Pair
from tests.support.ports import free_port


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("certificates"), "broker")


@pytest.fixture(scope="module")
def secure(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("secure") / "data", *pair.settings, trust=pair.trusting()).start()
    yield broker
    broker.stop()


def test_requests_are_answered_over_tls(secure: Broker, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Way(secure.url, trust=Trust(pair.certificate))) as way:
        assert way.ask("GET", "/health").body == b"green"
    monkeypatch.setenv("PENSTOCK_CA", str(pair.certificate))
    with closing(Way(secure.url)) as way:
        assert way.ask("GET", "/health").body == b"green"


def test_each_address_is_tried_in_turn(broker: Broker) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with closing(Way(f"{nobody},{broker.url}")) as way:
        assert way.ask("GET", "/health", patient=0).body == b"green"
        assert way.url == broker.url, "the next request goes there at once"
    with closing(Way(f"{nobody},{nobody}/")) as way, pytest.raises(BrokerError, match="Connection refused"):
        way.ask("GET", "/health", patient=0)


def test_a_certificate_that_is_not_trusted_is_an_error_at_once(secure: Broker) -> None:
    with closing(Way(secure.url)) as way, pytest.raises(BrokerError, match="the option ca in Spark"):
        way.ask("GET", "/health")


def test_a_file_that_is_missing_is_named(secure: Broker) -> None:
    with (
        closing(Way(secure.url, trust=Trust("missing.pem"))) as way,
        pytest.raises(ConfigError, match=r"missing\.pem"),
    ):
        way.ask("GET", "/health")


def test_readers_and_writers_have_the_same_options() -> None:
    given = {
        "url": "https://broker/, https://other",
        "ca": "ca.pem",
        "certificate": "own.pem",
        "certificatekey": "own.key",
    }
    assert parse_options(given).trust == parse_sink_options(given).trust == Trust("ca.pem", "own.pem", "own.key")
    assert parse_options(given).url == parse_sink_options(given).url == "https://broker,https://other"


def test_spark_writes_to_a_broker_with_tls_and_reads_its_events(
    spark: SparkSession, secure: Broker, pair: Pair
) -> None:
    secure.create_queue("encrypted")
    where = {"url": secure.url, "ca": str(pair.certificate)}
    rows = spark.createDataFrame([("one",), ("two",)], "body string")
    rows.write.format("penstock").options(**where, queue="encrypted").mode("append").save()
    events = spark.read.format("penstock").options(**where, queue="encrypted", state="L").load()
    assert events.count() == 2
