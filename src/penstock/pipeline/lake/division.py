"""Continues a lake whose log was divided into shards. Shard 0 has the past of all; the others begin at its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.pipeline.lake.directory import LAKE_FORMAT, Lake, Origin
from penstock.pipeline.lake.tables import TABLES, parts_table
from penstock.pipeline.source.log import Extent
from penstock.storage.directory import write_durably


def open_lake_for(lake: Lake, shards: Sequence[Extent]) -> Origin:
    """Make this the lake of a log, or check that it is, or was before the log was divided. Raises `LakeError`."""
    if (lake.path / "penstock.json").exists() and len(shards) > 1:
        _follow(lake, shards)
    return lake.open_for(shards)


def _follow(lake: Lake, shards: Sequence[Extent]) -> None:
    origin = lake.origin_of_any_format()
    divided_at = [log.same_until(origin.log or origin.logs[0]) for log in shards]
    if len(origin.logs) > 1 or not all(divided_at):
        return
    origin = lake.origin()  # Raises `LakeError` for an older format: it is upgraded first.
    new = Origin(LAKE_FORMAT, tuple(log.id for log in shards))
    for each in TABLES.values():
        table = parts_table(lake, each)
        if table.exists():
            past = table.reached(origin)[0]
            covered = {log.shard: (0, end or 0) for log, end in zip(shards, divided_at, strict=True)}
            table.append(new, covered | {0: (0, past)}, {"divided": str(len(shards))})
    write_durably(lake.path / "penstock.json", msgspec.json.encode(new) + b"\n")
