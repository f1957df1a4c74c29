"""Metrics of several shards as one."""

from __future__ import annotations

from typing import Any

from penstock.errors import Reason
from penstock.model.answers import Refused
from penstock.model.metrics import Durations, Metrics, ProcessFigure, ReadMetrics, joined
from penstock.model.queries import Absent, Heard


def of_shard(queue: str, healthy: float, commits: list[int]) -> Metrics:
    return Metrics(
        {
            "penstock_healthy": [((), healthy)],
            "penstock_names_max": [((), 100.0)],
            "penstock_commits_total": [((), sum(commits))],
            "penstock_queue_messages": [((queue, "ready"), 1.0), (("_audit", "ready"), 2.0)],
        },
        {"penstock_commit_seconds": [Durations((), commits, 0.5)]},
        [
            ProcessFigure("process_start_time_seconds", "gauge", "Start time.", 1000.0 + healthy),
            ProcessFigure("process_cpu_seconds_total", "counter", "Time.", 2.0),
        ],
    )


def heard(*answers: Any) -> list[Heard]:
    return [Heard(shard, shard % 2, answer) for shard, answer in enumerate(answers)]


def test_samples_are_added_up_unless_the_worst_or_the_largest_counts() -> None:
    found = joined(ReadMetrics(), heard(of_shard("a", 1.0, [1, 2]), of_shard("b", 0.0, [3, 4])))
    assert isinstance(found, Metrics)
    assert found.samples["penstock_healthy"] == [((), 0.0)]
    assert found.samples["penstock_names_max"] == [((), 100.0)]
    assert found.samples["penstock_commits_total"] == [((), 10)]
    assert dict(found.samples["penstock_queue_messages"]) == {
        ("a", "ready"): 1,
        ("b", "ready"): 1,
        ("_audit", "ready"): 4,
    }
    assert found.durations == {"penstock_commit_seconds": [Durations((), [4, 6], 1.0)]}
    assert [each.value for each in found.process] == [1000.0, 4.0]
    assert found.samples["penstock_shards_away"] == [(("0",), 0), (("1",), 0)]


def test_nothing_that_only_grows_is_shown_while_somebody_is_away() -> None:
    away = Absent("worker 1 has been silent for 9.0 s", is_away=True)
    found = joined(ReadMetrics(), heard(of_shard("a", 1.0, [1, 2]), away, of_shard("b", 1.0, [1, 2]), away))
    assert isinstance(found, Metrics)
    assert "penstock_commits_total" not in found.samples
    assert not found.durations
    assert [each.name for each in found.process] == ["process_start_time_seconds"]
    assert found.samples["penstock_shards_away"] == [(("0",), 0), (("1",), 2)]


def test_a_refusal_is_the_answer() -> None:
    refused = Refused(Reason.UNAVAILABLE)
    assert joined(ReadMetrics(), heard(of_shard("a", 1.0, [1, 2]), refused)) == refused
