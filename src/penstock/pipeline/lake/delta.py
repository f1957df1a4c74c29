"""A table of the lake: Parquet files with a Delta log, committed through delta-rs.

Each commit records the offset of each shard up to which its events are in the table. So no event is written twice,
whichever query writes it and however it divides the events into batches; ADR 21 explains this.

The sum of these offsets grows with every batch, whatever shards its events are of. So it is the place of a batch
among all: the name of each file begins with the sums before and after its batch.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from penstock.errors import LakeError
from penstock.limits import LAKE_LOG_RETENTION_DAYS
from penstock.pipeline.lake.directory import Lake, Origin
from penstock.pipeline.lake.statistics import statistics_of
from penstock.storage.directory import sync

PARTITION = "date"
_COMPACTION = "penstock-compaction"  # Counts commits that remove files, so that of two at the same time one fails.
_RANGE = re.compile(r"(\d{20})-(\d{20})-")
_SETTINGS = {
    "delta.logRetentionDuration": f"interval {LAKE_LOG_RETENTION_DAYS} days",
    "delta.checkpointInterval": "50",
}


Offsets = tuple[int, ...]  # By shard.
Covered = Mapping[int, tuple[int, int]]  # By shard: the first offset, and the one after the last.


class LakeFile(NamedTuple):
    """A file of a table, and the place of its batches among all."""

    path: str
    first: int  # The sum of the offsets of all shards before them,
    end: int  # and after them.
    date: date | None
    bytes: int
    rows: int
    statistics: str = ""  # Of a file that is being added, as JSON.


class LakeTable:
    """One table: lists, adds and removes its files. Caches the table's state and updates it incrementally."""

    def __init__(
        self, lake: Lake, name: str, schema: pa.Schema, *, by_date: bool, staging: str = "_staging", folder: str = ""
    ) -> None:
        self.name = name
        self.path = lake.path / folder / name
        self.schema = schema
        self.by_date = by_date
        # Each writer has its own: the executors of a killed writer may still be writing.
        self.staging = self.path / f"{staging}-{uuid4().hex}"
        self._delta: DeltaTable | None = None

    def exists(self) -> bool:
        return self._open() is not None

    def make(self) -> None:
        if self._open() is None:
            self._delta = DeltaTable.create(
                str(self.path),
                schema=Schema.from_arrow(self.schema),
                partition_by=[PARTITION] if self.by_date else None,
                configuration=_SETTINGS,
            )
        self._clear("_staging-*", 0)  # Left by dead processes: only one process fills the lake.

    def lacks_columns(self) -> bool:
        return not {*self.schema.names} <= {*self.arrow_schema().names}

    def widen(self) -> None:
        """Add columns that the table was made without. The files that it has should have them already."""
        delta = self._required()
        known = {field.name for field in delta.schema().fields}
        delta.alter.add_columns([field for field in Schema.from_arrow(self.schema).fields if field.name not in known])

    def reached(self, origin: Origin) -> Offsets:
        """The offset of each shard up to which its events are in this table."""
        delta = self._open()
        return tuple((delta.transaction_version(name) or 0) if delta else 0 for name in origin.names)

    def arrow_schema(self) -> pa.Schema:
        """The columns that the table has, which may be others than those that this version gives it."""
        return pa.schema(self._required().schema().to_arrow())

    def version(self) -> int:
        return self._required().version()

    def files(self) -> list[LakeFile]:
        """The files that the table consists of now."""
        delta = self._open()
        if delta is None:
            return []
        rows = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        return sorted((_file(row) for row in rows), key=lambda file: (file.first, file.path))

    def uris(self, files: Iterable[LakeFile]) -> list[str]:
        return [str(self.path / file.path) for file in files]

    # ── Files in and out ────────────────────────────────────────────────────────────────────────────────────

    def stage(self) -> Path:
        """An empty directory for Spark to write into. The next commit takes the files from there."""
        shutil.rmtree(self.staging, ignore_errors=True)
        return self.staging

    def staged(self) -> list[Path]:
        return sorted(self.staging.rglob("*.parquet"))

    def append(
        self, origin: Origin, covered: Covered, noted: dict[str, Any], old: Sequence[LakeFile] = ()
    ) -> list[LakeFile]:
        """Commit the staged rows, made from these offsets, in place of the old files. Without rows, the table still
        records the offsets."""
        before = self.reached(origin)
        first = sum(max(had, covered[shard][0]) if shard in covered else had for shard, had in enumerate(before))
        reached = after(before, covered)
        added = self._settle(first, sum(reached))
        self._commit(self._required(), added, old, _transactions(origin, reached), noted)
        return added

    def replace(
        self, old: Sequence[LakeFile], origin: Origin, reached: Offsets, noted: dict[str, Any]
    ) -> list[LakeFile]:
        """Replace these files by the staged ones; the table then has the events up to `reached`."""
        added = self._settle(0, sum(reached))
        self._commit(self._required(), added, old, _transactions(origin, reached), noted)
        return added

    def publish(
        self, old: Sequence[LakeFile], origin: Origin, reached: Offsets, noted: dict[str, Any]
    ) -> list[LakeFile]:
        """Like `replace`, for a table that several processes may publish. Raises `LakeError` if another process has
        published since `files` was called."""
        delta = self._delta or self._required()
        added = self._settle(0, sum(reached))
        keys = [*_transactions(origin, reached), self._next_removal(delta)]
        self._commit(delta, added, old, keys, noted)
        return added

    def compact(self, old: Sequence[LakeFile], noted: dict[str, Any]) -> list[LakeFile]:
        """Replace these files by the staged ones, which have the same content in fewer rows or files. Raises
        `LakeError` if there was another compaction since `files` was called."""
        delta = self._delta or self._required()
        added = self._settle(min(file.first for file in old), max(file.end for file in old))
        self._commit(delta, added, old, [self._next_removal(delta)], noted, data_change=False)
        return added

    def _next_removal(self, delta: DeltaTable) -> Transaction:
        return Transaction(_COMPACTION, (delta.transaction_version(_COMPACTION) or 0) + 1)

    def vacuum(self, hours: float) -> int:
        """Remove files that left the table more than `hours` ago; the files of a commit under way are younger.
        Returns how many."""
        delta = self._required()
        removed = delta.vacuum(int(hours), dry_run=False, enforce_retention_duration=False, full=True)
        delta.cleanup_metadata()
        self._clear("_*-*", hours)
        return len(removed)

    def _clear(self, pattern: str, hours: float) -> None:
        """Remove staging directories that other writers have left."""
        for folder in self.path.glob(pattern):
            if folder != self.staging and folder.stat().st_mtime <= time.time() - 3600 * hours:
                shutil.rmtree(folder, ignore_errors=True)

    def _settle(self, first: int, end: int) -> list[LakeFile]:
        """Move the staged files to their final places, durably."""
        settled, folders = [], set()
        for staged in self.staged():
            metadata = pq.read_metadata(staged)
            if not metadata.num_rows:
                continue
            folder = staged.parent.relative_to(self.staging)
            path = self.path / folder / f"{first:020d}-{end:020d}-{staged.name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            sync(staged)
            staged.rename(path)
            folders.add(path.parent)
            when = date.fromisoformat(folder.name.removeprefix(f"{PARTITION}=")) if self.by_date else None
            place = str(path.relative_to(self.path))
            facts = (path.stat().st_size, metadata.num_rows, statistics_of(metadata))
            settled.append(LakeFile(place, first, end, when, *facts))
        for folder in folders:
            sync(folder)
        shutil.rmtree(self.staging, ignore_errors=True)
        return settled

    def _commit(
        self,
        delta: DeltaTable,
        added: Sequence[LakeFile],
        removed: Sequence[LakeFile],
        keys: list[Transaction],
        noted: dict[str, Any],
        *,
        data_change: bool = True,
    ) -> None:
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(file.path, data_change, now_ms, file.bytes, _partition(file)) for file in removed
        ]
        actions += [
            AddAction(file.path, file.bytes, _partition(file), now_ms, data_change, file.statistics) for file in added
        ]
        try:
            delta.create_write_transaction(
                actions,
                "append",
                Schema.from_arrow(self.schema),
                [PARTITION] if self.by_date else None,
                commit_properties=CommitProperties(custom_metadata=noted, app_transactions=keys),
            )
        except DeltaError as error:
            raise LakeError(f"another process changed the table {self.name} at the same time: {error}") from None
        sync(self.path / "_delta_log")

    def _open(self) -> DeltaTable | None:
        if self._delta is None:
            try:
                self._delta = DeltaTable(str(self.path))
            except TableNotFoundError:
                return None
        else:
            self._delta.update_incremental()
        return self._delta

    def _required(self) -> DeltaTable:
        delta = self._open()
        if delta is None:
            raise LakeError(f"{self.path.parent} has no table {self.name} yet: penstock pipeline run makes it")
        return delta


def by_date_and_range(files: Iterable[LakeFile]) -> dict[date | None, list[list[LakeFile]]]:
    """The files by date, then grouped by their place, in order."""
    ranges: dict[date | None, dict[tuple[int, int], list[LakeFile]]] = defaultdict(lambda: defaultdict(list))
    for file in files:
        ranges[file.date][file.first, file.end].append(file)
    return {when: [units[key] for key in sorted(units)] for when, units in ranges.items()}


def after(reached: Offsets, covered: Covered) -> Offsets:
    """The offsets that are reached with these."""
    return tuple(max(had, covered[shard][1]) if shard in covered else had for shard, had in enumerate(reached))


def _transactions(origin: Origin, reached: Offsets) -> list[Transaction]:
    return [Transaction(name, offset) for name, offset in zip(origin.names, reached, strict=True) if offset]


def _file(row: dict[str, Any]) -> LakeFile:
    match = _RANGE.match(Path(row["path"]).name)
    first, end = (int(match[1]), int(match[2])) if match else (0, 0)
    return LakeFile(row["path"], first, end, row.get(f"partition.{PARTITION}"), row["size_bytes"], row["num_records"])


def _partition(file: LakeFile) -> dict[str, str | None]:
    return {PARTITION: file.date.isoformat()} if file.date else {}
