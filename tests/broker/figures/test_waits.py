"""How long commands take is recorded by dialect, whatever the answer; and what was counted lately."""

from __future__ import annotations

from itertools import count

from penstock.broker.figures.waits import BOUNDS_SECONDS, Histogram, LastMinute, Latencies


def test_a_timed_reply_passes_the_answer_on_and_records_how_long_it_took() -> None:
    clock, answers = count(), list[str]()
    latencies = Latencies(lambda: next(clock) * 0.002)
    latencies.timed("mqs", answers.append)("done")
    latencies.timed("mqs", answers.append)("refused")
    latencies.timed("nq", answers.append)("done")
    assert answers == ["done", "refused", "done"]
    assert sorted(latencies.by_dialect) == ["mqs", "nq"]
    assert latencies.by_dialect["mqs"].sum == 0.004
    within = dict(zip(BOUNDS_SECONDS, latencies.by_dialect["mqs"].value().counts, strict=False))
    assert (within[0.001], within[0.0025], sum(within.values())) == (0, 2, 2)


def test_the_last_minute_shows_what_was_counted_in_it_and_nothing_before() -> None:
    histogram = Histogram()
    minute = LastMinute(histogram)
    minute.look(0.0)
    assert minute.describe(0.0) == {"count": 0, "p99": None, "busy": 0.0}
    histogram.observe(4.0)
    minute.look(10.0)
    for _ in range(100):
        histogram.observe(0.004)
    assert minute.describe(20.0) == {"count": 101, "p99": 0.005, "busy": 0.22}
    minute.look(70.0)
    assert minute.describe(70.0) == {"count": 100, "p99": 0.00498, "busy": 0.007}


def test_what_takes_longer_than_every_bound_counts_as_the_longest() -> None:
    histogram = Histogram()
    minute = LastMinute(histogram)
    minute.look(0.0)
    histogram.observe(60.0)
    assert minute.describe(30.0) == {"count": 1, "p99": 5.0, "busy": 1.0}
