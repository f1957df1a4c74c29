"""Questions to the lake, and messages of the archive that are sent once more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.errors import LakeError, SparkError
from penstock.pipeline.lake.directory import Lake
from penstock.pipeline.lake.sql import ask, replay
from tests.pipeline.conftest import url_of
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import events, make_queue
from tests.support.lakes import FilledLake


def test_every_table_can_be_asked_under_its_name(spark: SparkSession, past_lake: FilledLake, past: Broker) -> None:
    found = ask(spark, past_lake.lake, "select state, count(*) as n from messages group by state", 100).to_pylist()
    came = [event for event in events(past) if event["state"] in "QU"]
    assert sum(row["n"] for row in found) == len(came)
    joined = "select distinct queue from messages join queue_minutes q using (queue) where q.dead > 0"
    dead = ask(spark, past_lake.lake, f"{joined} order by 1", 100)["queue"].to_pylist()
    assert dead == ["hopeless", "mail", "once", "picky"]


def test_no_more_rows_come_than_were_asked_for_and_one(spark: SparkSession, past_lake: FilledLake) -> None:
    assert ask(spark, past_lake.lake, "select * from events", 10).num_rows == 11


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("select nope from events", "`nope` cannot be resolved"),
        ("selct 1", "Syntax error"),
        ("select * from x", "`x`"),
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(
    spark: SparkSession, past_lake: FilledLake, query: str, said: str
) -> None:
    with pytest.raises(SparkError, match=said) as raised:
        ask(spark, past_lake.lake, query, 10)
    assert "JVM stacktrace" not in str(raised.value)


def test_without_a_lake_the_command_says_so_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "penstock.cli", "sql", "select 1", "--lake", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"penstock: there is no lake in {tmp_path} yet: fill one with penstock pipeline run --lake {tmp_path}\n"
    )
    with pytest.raises(LakeError, match="no lake"):
        Lake(tmp_path).origin()


def test_dead_letters_of_the_archive_are_sent_once_more(
    spark: SparkSession, past_lake: FilledLake, start_broker: StartBroker
) -> None:
    broker = start_broker()
    make_queue(broker, "again")
    every = "select message, content_type from messages where failed is not null"
    dead = ask(spark, past_lake.lake, every, 1000).to_pylist()
    sent = replay(spark, past_lake.lake, "failed is not null", "again", {"url": url_of(broker)})
    assert sent == len(dead) > 0
    answer = broker.request("GET", "/messages/again", {"X-MQS-MAX-MESSAGES": "1000"})
    assert sorted(message.body for message in answer.messages()) == sorted(row["message"] for row in dead)
    types = {row["content_type"] or "application/octet-stream" for row in dead}
    assert {message.header("Content-Type") for message in answer.messages()} == types


def test_plot_and_png_together_draw_both(past_lake: FilledLake, tmp_path: Path) -> None:
    query = "select state, count(*) as n from messages group by state"
    command = [sys.executable, "-m", "penstock.cli", "sql", query, "--lake", str(past_lake.lake.path), "--plot"]
    command += ["--png", str(tmp_path / "states.png")]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "█" in drawn
    assert (tmp_path / "states.png").read_bytes().startswith(b"\x89PNG")


def test_a_message_that_is_invalid_or_not_for_its_consumer_counts_as_not_confirmed(past_lake: FilledLake) -> None:
    rows = [row for row in past_lake.rows("messages") if row["state"] in ("I", "N")]
    assert rows
    assert {row["confirmed_count"] for row in rows} == {0}
