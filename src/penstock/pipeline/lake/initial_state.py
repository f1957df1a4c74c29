"""Begins a lake of a log whose first events are past retention: with the state of each shard at one offset.

Messages that wait, deliveries under way and depths come from the snapshots of the shards, everything else from the
events after them. The rows are kept in `_initial/`, because the events that they stand for cannot be read again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.decoding import decode_json
from penstock.errors import BrokerError, LakeError
from penstock.pipeline.lake.delta import PARTITION, Covered, LakeTable
from penstock.pipeline.lake.directory import Lake, Origin
from penstock.pipeline.lake.shard_state import ShardState
from penstock.pipeline.lake.tables import TABLES, Table, parts_table
from penstock.pipeline.source.log import EventLog, Extent
from penstock.storage.directory import sync, write_durably

_FOLDER, _COMPLETE = "_initial", "initial.json"


class InitialState(msgspec.Struct, frozen=True):
    """At which offset of each shard the lake begins."""

    offsets: tuple[int, ...]

    @property
    def covered(self) -> Covered:
        return {shard: (0, offset) for shard, offset in enumerate(self.offsets)}


def initial_state(lake: Lake) -> InitialState | None:
    """What the lake began with; None if it has all events of its log."""
    try:
        return decode_json((lake.path / _FOLDER / _COMPLETE).read_bytes(), InitialState)
    except FileNotFoundError:
        return None


def begin(
    lake: Lake,
    origin: Origin,
    logs: Sequence[EventLog],
    extents: Sequence[Extent],
    say: Callable[[str], None],
    *,
    skip_lost: bool = False,
) -> None:
    """Give a new lake of a log that begins late what its first events would have made. `skip_lost`: go on without it
    if the state cannot be read."""
    found = initial_state(lake)
    if found is None:
        if lake.checkpoint.exists() or _is_begun(lake, origin) or not any(each.has_begun_late for each in extents):
            return
        try:
            found = _copied(lake, logs, extents, say)
        except BrokerError as error:
            if not skip_lost:
                raise LakeError(_unreadable(extents, error)) from None
            say(f"the messages that waited when the log began are unknown to the lake: {error}")
            return
    if found is not None:
        _put_in(lake, origin, found)


def initial_files(lake: Lake, table: Table) -> list[Path]:
    """The rows of a table that the lake began with."""
    return sorted((lake.path / _FOLDER / table.name).rglob("*.parquet")) if initial_state(lake) else []


def stage_initial_rows(lake: Lake, table: Table, target: LakeTable) -> None:
    """Add what the lake began with to the staged rows of a table."""
    for path in initial_files(lake, table):
        staged = target.staging / path.relative_to(lake.path / _FOLDER / table.name)
        staged.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, staged)
        except OSError:
            shutil.copy(path, staged)


def _is_begun(lake: Lake, origin: Origin) -> bool:
    return any(any(parts_table(lake, table).reached(origin)) for table in TABLES.values())


def _put_in(lake: Lake, origin: Origin, found: InitialState) -> None:
    """Each table begins with it in one commit, so what was interrupted is continued."""
    for table in TABLES.values():
        target = parts_table(lake, table)
        target.make()
        if not any(target.reached(origin)):
            target.stage()
            stage_initial_rows(lake, table, target)
            target.append(origin, found.covered, {"initial": "true"})


def _copied(
    lake: Lake, logs: Sequence[EventLog], extents: Sequence[Extent], say: Callable[[str], None]
) -> InitialState | None:
    """Write the state of all shards beside the lake. None if a shard has no snapshot: then it has all its events."""
    folder = lake.path / _FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    offsets, waiting = [], 0
    with tempfile.TemporaryDirectory() as scratch:
        for log, extent in zip(logs, extents, strict=True):
            snapshot = log.snapshot(Path(scratch))
            if snapshot is None:
                offsets.append(extent.earliest)
                continue
            state = ShardState(log, extent, snapshot)
            _write(folder, extent.shard, state)
            offsets.append(state.offset)
            waiting += state.waiting
    reached = ", ".join(map(str, offsets))
    say(f"{_begins(extents)}: the lake begins with the {waiting:,} messages that waited at {reached}")
    write_durably(folder / _COMPLETE, msgspec.json.encode(InitialState(tuple(offsets))) + b"\n")
    sync(lake.path)
    return InitialState(tuple(offsets))


def _write(folder: Path, shard: int, state: ShardState) -> None:
    """A file for each table, shard and date."""
    with ExitStack() as opened:
        writers: dict[Path, pq.ParquetWriter] = {}
        for name, rows in state.tables():
            for path, part in _by_date(folder / name, rows):
                file = path / f"initial-{shard}.parquet"
                if file not in writers:
                    path.mkdir(parents=True, exist_ok=True)
                    writer = pq.ParquetWriter(file, part.schema, compression="zstd")
                    writers[file] = opened.enter_context(writer)
                writers[file].write_table(part)
    for file in writers:
        sync(file)


def _by_date(folder: Path, rows: pa.Table) -> list[tuple[Path, pa.Table]]:
    if PARTITION not in rows.column_names:
        return [(folder, rows)] if rows.num_rows else []
    days: list[Any] = pc.unique(rows[PARTITION]).to_pylist()
    bare = rows.drop_columns([PARTITION])
    return [(folder / f"{PARTITION}={day}", bare.filter(pc.equal(rows[PARTITION], day))) for day in days]


def _unreadable(extents: Sequence[Extent], error: BrokerError) -> str:
    return (
        f"{_begins(extents)}, so a new lake begins with the state of the broker, which cannot be read: {error}. Use a"
        " token with the scope admin, or continue without the messages that waited then: --skip-lost"
    )


def _begins(extents: Sequence[Extent]) -> str:
    return ", ".join(f"{extent.name} begins at offset {extent.earliest}" for extent in extents)
