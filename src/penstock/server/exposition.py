"""Metrics in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import accumulate
from typing import Any

from penstock.broker.figures.waits import BOUNDS_SECONDS
from penstock.dialects.wire.http import Response, Steps, no_answer
from penstock.limits import SAMPLES_PER_PART
from penstock.model.metrics import FAMILIES, Durations, Family, Metrics, ReadMetrics
from penstock.model.queries import NoAnswer

_CONTENT_TYPE = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"


def scraped() -> Steps:
    """What answers a scrape."""
    found: Any = yield ReadMetrics()
    if isinstance(found, NoAnswer):
        return no_answer(found)
    text = yield from exposition(found)
    return Response(200, text, _CONTENT_TYPE)


def exposition(metrics: Metrics) -> Generator[None, Any, bytes]:
    """In parts, because a thousand queues take some milliseconds."""
    written: list[str] = []
    for family in FAMILIES:
        if family.name in metrics.durations:
            written += _head(*family[:3])
            written += [line for each in metrics.durations[family.name] for line in _buckets(family, each)]
        elif family.name in metrics.samples:
            samples = metrics.samples[family.name]
            written += _head(*family[:3])
            for start in range(0, len(samples), SAMPLES_PER_PART):
                part = samples[start : start + SAMPLES_PER_PART]
                written += [
                    _line(family.name, zip(family.labels, labels, strict=True), value) for labels, value in part
                ]
                yield
    for figure in metrics.process:
        written += _head(figure.name, figure.type, figure.help)
        written.append(_line(figure.name, (), figure.value))
    return "".join(written).encode()


def _buckets(family: Family, durations: Durations) -> Iterator[str]:
    labels = list(zip(family.labels, durations.labels, strict=True))
    bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
    for bound, count in zip(bounds, accumulate(durations.counts), strict=True):
        yield _line(f"{family.name}_bucket", [*labels, ("le", bound)], count)
    yield _line(f"{family.name}_count", labels, sum(durations.counts))
    yield _line(f"{family.name}_sum", labels, durations.sum)


def _head(name: str, kind: str, words: str) -> list[str]:
    return [f"# HELP {name} {words}\n", f"# TYPE {name} {kind}\n"]


def _line(name: str, labels: Any, value: float) -> str:
    named = ",".join([f'{label}="{_escaped(text)}"' for label, text in labels])
    return f"{name}{{{named}}} {float(value)}\n" if named else f"{name} {float(value)}\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
