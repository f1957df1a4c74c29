"""Rows of `queue_minutes` for a broker: one queue or all, summed up in steps."""

from __future__ import annotations

from pathlib import Path

from penstock.pipeline.lake.minute_rows import Question, answered
from tests.support.small_lake import write_minutes

HOUR = 3600 * 400_000


def test_minutes_are_summed_up_in_steps(tmp_path: Path) -> None:
    write_minutes(tmp_path / "lake", ("work", HOUR, 3), ("work", HOUR + 60, 4), ("other", HOUR, 10))
    asked = Question(str(tmp_path / "lake"), HOUR, HOUR + 3600, 60, "work")
    first, second = answered(asked)["rows"]
    assert (first["time"], first["messages_in"], first["depth"], first["wait_p50_ms"] > 0) == (HOUR, 3, 3, True)
    assert (second["time"], second["messages_in"], second["depth"]) == (HOUR + 60, 4, 7)
    asked.step = 3600
    [whole] = answered(asked)["rows"]
    assert (whole["time"], whole["messages_in"], whole["depth"]) == (HOUR, 7, 7)
    asked.queue = None
    [everything] = answered(asked)["rows"]
    assert (everything["messages_in"], everything["depth"]) == (17, None)
    asked.since = HOUR + 60
    assert [row["messages_in"] for row in answered(asked)["rows"]] == [4]


def test_quantiles_are_those_of_all_waits_and_not_of_quantiles(tmp_path: Path) -> None:
    """Three queues wait shortly, once each; one waits long and often."""
    short = [(f"short-{number}", HOUR, 1) for number in range(3)]
    write_minutes(tmp_path / "lake", *short, ("long", HOUR, 7), waits={"long": 2000})
    asked = Question(str(tmp_path / "lake"), HOUR, HOUR + 60, 60)
    [both] = answered(asked)["rows"]
    asked.queue = "long"
    [long] = answered(asked)["rows"]
    asked.queue = "short-1"
    [one] = answered(asked)["rows"]
    assert one["wait_p50_ms"] < both["wait_p50_ms"] == long["wait_p50_ms"]


def test_what_is_wrong_is_the_answer(tmp_path: Path) -> None:
    asked = Question(str(tmp_path / "nothing"), HOUR, HOUR + 60, 60)
    assert "there is no lake in" in answered(asked)["error"]
