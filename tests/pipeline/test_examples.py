"""The programs in examples/, run as they are, in the session that tests share."""

from __future__ import annotations

import json
import runpy
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.pipeline.conftest import url_of
from tests.pipeline.sink.test_writer import bodies
from tests.pipeline.source.test_queue import left
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import make_queue, publish

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def broker(start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = start_broker()
    monkeypatch.setenv("PENSTOCK_URL", url_of(broker))
    monkeypatch.setenv("CHECKPOINT", str(tmp_path / "checkpoint"))
    return broker


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")


def test_words_are_counted(spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for queue in ("texts", "counts"):
        make_queue(broker, queue)
    publish(broker, "texts", b"To be, or not to be", b"that is the question")
    run("word_count", monkeypatch=monkeypatch)
    counted = [json.loads(body) for body in bodies(broker, "counts")]
    twice, once = ("to", "be"), ("or", "not", "that", "is", "the", "question")
    assert {row["word"]: row["count"] for row in counted} == dict.fromkeys(twice, 2) | dict.fromkeys(once, 1)
    assert not left(broker, "texts")


def test_dead_letters_are_sorted(spark: SparkSession, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for queue in ("dead", "orders", "for-people"):
        make_queue(broker, queue)
    publish(broker, "dead", b'{"amount": 5}', b"not JSON", b"{}")
    run("dead_letter_triage", monkeypatch=monkeypatch)
    assert bodies(broker, "orders") == Counter([b'{"amount": 5}'])
    assert bodies(broker, "for-people") == Counter([b"not JSON", b"{}"])


def test_orders_are_enriched(
    spark: SparkSession, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for queue in ("orders", "enriched"):
        make_queue(broker, queue)
    publish(broker, "orders", b'{"customer": "c1", "amount": 5}', b'{"customer": "c9", "amount": 7}')
    table = tmp_path / "customers.csv"
    table.write_text("customer,name,city\nc1,Ada,London\n")
    run("enrichment", str(table), monkeypatch=monkeypatch)
    found = sorted((json.loads(body) for body in bodies(broker, "enriched")), key=lambda row: str(row["customer"]))
    assert found == [
        {"customer": "c1", "name": "Ada", "city": "London", "amount": 5.0},
        {"customer": "c9", "amount": 7.0},
    ]
