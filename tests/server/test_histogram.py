"""How long commands take is recorded by dialect, whatever the answer."""

from __future__ import annotations

from itertools import count

from penstock.server.histogram import Latencies


def test_a_timed_reply_passes_the_answer_on_and_records_how_long_it_took() -> None:
    clock, answers = count(), list[str]()
    latencies = Latencies(lambda: next(clock) * 0.002)
    latencies.timed("mqs", answers.append)("done")
    latencies.timed("mqs", answers.append)("refused")
    latencies.timed("nq", answers.append)("done")
    assert answers == ["done", "refused", "done"]
    assert sorted(latencies.by_dialect) == ["mqs", "nq"]
    assert latencies.by_dialect["mqs"].sum == 0.004
    within = dict(latencies.by_dialect["mqs"].buckets())
    assert (within["0.001"], within["0.0025"], within["+Inf"]) == (0, 2, 2)
