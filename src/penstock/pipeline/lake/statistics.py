"""What the Delta log says of a file, so that readers skip files: lowest and highest values, and numbers of nulls."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import pyarrow.parquet as pq

_TEXT_CHARACTERS_MAX = 64  # Longer texts make the log large, and nobody looks for ranges of them.


def statistics_of(metadata: pq.FileMetaData) -> str:
    """As JSON. Columns inside of others, and bytes, have none."""
    lowest: dict[str, Any] = {}
    highest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(metadata.num_columns):
        column = metadata.schema.column(at)
        found = [metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups)]
        if column.max_repetition_level or "." in column.path or not all(found):
            continue
        nulls[column.path] = sum(each.null_count or 0 for each in found)
        filled = [each for each in found if each.num_values]
        if filled and all(each.has_min_max and _has_order(each.min) and _has_order(each.max) for each in filled):
            lowest[column.path] = _plain(min(each.min for each in filled))
            highest[column.path] = _plain(max(each.max for each in filled))
    told = {"numRecords": metadata.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return json.dumps(told)


def _has_order(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _TEXT_CHARACTERS_MAX
    return isinstance(value, int | date) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value.isoformat() if isinstance(value, date) else value
