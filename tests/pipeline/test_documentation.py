"""The blocks of the documentation that are for a Spark shell."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.broker import StartBroker
from tests.support.documentation import PAGES, at_broker, blocks_of
from tests.support.event_history import make_queue, publish


def test_what_the_manual_shows_for_a_spark_shell_works_there(
    spark: SparkSession, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker(data=tmp_path / "data")
    make_queue(broker, "sales")
    publish(broker, "sales", b"sale 1", b"sale 2")
    blocks = [block for page in PAGES for block in blocks_of(page) if block.mark == "spark"]
    assert blocks
    shell = {"spark": spark}
    for block in blocks:
        text = at_broker(broker, block.text).replace("/tmp/", f"{tmp_path}/").replace('"data"', f'"{broker.data}"')
        exec(text, shell)
    assert broker.request("GET", "/queues/sales").json()["status"]["messages"] == 5
