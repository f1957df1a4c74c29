"""Makes a lake the lake of a log that was restored from a backup of its own.

Both logs are the same up to an offset of each shard. What the lake has after it did not happen: the events are cut
off there, and the other tables are made again from those that are left. What is interrupted is begun again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence

import msgspec
from pyspark.sql import SparkSession

from penstock.errors import LakeError
from penstock.pipeline.lake.batch import NOTHING, Batch
from penstock.pipeline.lake.compaction import rebuild
from penstock.pipeline.lake.delta import Offsets
from penstock.pipeline.lake.directory import LAKE_FORMAT, Lake, Origin
from penstock.pipeline.lake.files import ask, read, write_files
from penstock.pipeline.lake.initial_state import initial_state
from penstock.pipeline.lake.recipes import RECIPES
from penstock.pipeline.lake.tables import EVENTS, TABLES, parts_table
from penstock.pipeline.source.log import Extent
from penstock.storage.directory import write_durably


def adopt(spark: SparkSession, lake: Lake, shards: Sequence[Extent], say: Callable[[str], None]) -> bool:
    """Cut the lake back to where both logs are the same. Returns false if it already is the lake of this log."""
    old, new = lake.origin(), Origin(LAKE_FORMAT, tuple(log.id for log in shards))
    if old.logs != new.logs:
        common = common_offsets(lake, old, shards)
        write_durably(lake.adoption, b"")
        shutil.rmtree(lake.checkpoint, ignore_errors=True)  # The tables know the offsets.
        reached = _cut_events(spark, lake, old, new, common)
        say(f"events: cut back to offset {' · '.join(f'{offset:,}' for offset in reached)}")
        write_durably(lake.path / "penstock.json", msgspec.json.encode(new) + b"\n")
    if not lake.adoption.exists():
        return False
    for table in TABLES.values():
        if table is not EVENTS:
            say(f"{table.name}: {rebuild(spark, lake, table):,} rows")
    lake.adoption.unlink()
    return True


def common_offsets(lake: Lake, old: Origin, shards: Sequence[Extent]) -> Offsets:
    """The offset of each shard up to which the log of the lake and the restored one are the same. Raises
    `LakeError`."""
    if len(old.logs) != len(shards):
        raise LakeError(f"the lake has {len(old.logs)} shards and the log {len(shards)}: fill a new lake")
    same = [log.same_until(before) for log, before in zip(shards, old.logs, strict=True)]
    strange = [log for log, until in zip(old.logs, same, strict=True) if until == 0]
    if strange:
        raise LakeError(
            f"{lake.path} is the lake of the log {', '.join(strange)}, from which this one was not restored: "
            "there is nothing to adopt; fill a new lake"
        )
    found = tuple(log.end if until is None else until for log, until in zip(shards, same, strict=True))
    began = initial_state(lake)
    if began and any(offset < first for offset, first in zip(found, began.offsets, strict=True)):
        raise LakeError(f"{lake.path} begins after the backup: fill a new lake")
    return found


def _cut_events(spark: SparkSession, lake: Lake, old: Origin, new: Origin, common: Offsets) -> Offsets:
    """Replace the files that have later events by what is before, in one commit that names the new log."""
    table = parts_table(lake, EVENTS)
    before = table.reached(new) if any(table.reached(new)) else table.reached(old)
    reached = tuple(map(min, before, common))
    files = table.files()
    later = "offset >= array({})[shard]".format(", ".join(f"{offset}L" for offset in common))
    table.stage()
    changed = [file for file in files if file.end > sum(reached)] if len(common) == 1 else files
    facts = ask(read(spark, table, changed).where(later)) if changed else None
    if facts is None:
        changed = []
    else:
        kept = read(spark, table, changed).where(f"not ({later})")
        write_files(EVENTS, table, RECIPES[EVENTS].parts(Batch(kept, {}, kept, NOTHING, facts.newest), NOTHING))
    table.replace(changed, new, reached, {"adopted": "true"})
    return reached
