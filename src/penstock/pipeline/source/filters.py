"""Filters of a query that the source applies itself, so that it reads less.

Spark calls `pushFilters` only if `spark.sql.python.filterPushdown.enabled` is set, and otherwise refuses a reader
that has this method. With the setting, Spark plans in a process that runs another module. By this a reader knows
whether to offer the method.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from msgspec import structs
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from penstock.pipeline.source.options import Options

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


def is_pushing() -> bool:
    """Whether Spark passes filters to the readers of this process."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHING in sys.modules or getattr(main, "name", "") == _PUSHING


def push(options: Options, filters: Iterable[Filter]) -> tuple[Options, list[Filter]]:
    """The options narrowed by these filters, and the filters that Spark must apply itself."""
    left = []
    for each in filters:
        narrowed = _narrowed(options, each)
        if narrowed is None:
            left.append(each)
        else:
            options = narrowed
    return options, left


def _narrowed(options: Options, condition: Filter) -> Options | None:
    """The options narrowed by a filter; None if only Spark can apply it."""
    match condition:
        case EqualTo(("state",), str(value)):
            return _one_of(options, "states", {value})
        case EqualTo(("queue",), str(value)):
            return _one_of(options, "queues", {value})
        case In(("state",), values) if _are_texts(values):
            return _one_of(options, "states", set(values))
        case In(("queue",), values) if _are_texts(values):
            return _one_of(options, "queues", set(values))
        case EqualTo(("offset",), int(value)):
            return _between(options, value, value + 1)
        case GreaterThan(("offset",), int(value)):
            return _between(options, value + 1, None)
        case GreaterThanOrEqual(("offset",), int(value)):
            return _between(options, value, None)
        case LessThan(("offset",), int(value)):
            return _between(options, None, value)
        case LessThanOrEqual(("offset",), int(value)):
            return _between(options, None, value + 1)
        case _:
            return None


def _are_texts(values: Any) -> bool:
    return bool(values) and all(isinstance(value, str) for value in values)


def _one_of(options: Options, field: str, wanted: set[str]) -> Options | None:
    """An empty set means everything, so conditions that have no value in common are left to Spark."""
    before: frozenset[str] = getattr(options, field)
    both = wanted & before if before else wanted
    return structs.replace(options, **{field: frozenset(both)}) if both else None


def _between(options: Options, low: int | None, high: int | None) -> Options:
    return structs.replace(
        options,
        low=max(options.low, low or 0),
        high=options.high if high is None else min(max(high, 0), options.high if options.high is not None else high),
    )
