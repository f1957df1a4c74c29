"""Fewer and larger files: parts of a table that follow each other are merged into one file, and old files removed.

While the stream runs, sixteen neighbours of about the same size become one, so each row is written again once for
every sixteenfold growth; a file that is large enough is left alone. When asked to, everything of a date becomes one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from math import ceil

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.errors import LakeError
from penstock.limits import (
    LAKE_FILE_BYTES,
    LAKE_FILES_MIN,
    LAKE_PUBLISH_REST,
    LAKE_PUBLISH_SECONDS,
    LAKE_VACUUM_HOURS,
)
from penstock.pipeline.lake import Lake, LakeFile, LakeTable, by_date_and_range
from penstock.pipeline.publication import public_table, publish
from penstock.pipeline.stream import ask, lake_table, read, write_files
from penstock.pipeline.tables import EVENTS, TABLES, Batch, Table

logger = logging.getLogger(__name__)

_STAGING = "_compacting"
_JOBS = "housekeeping"
_SMALL_BYTES = 256 << 10
_VACUUM_SECONDS = 3600.0

Unit = list[LakeFile]  # The files of one date and one range of offsets.


def compact(spark: SparkSession, lake: Lake, table: Table, *, everything: bool = False) -> int:
    """How many files are gone from the table."""
    target = lake_table(lake, table, _STAGING)
    if table.whole or not target.exists():
        return 0
    before = 0
    after = 0
    for units in by_date_and_range(target.files()).values():
        for run in [units] if everything else _runs(units):
            files = [file for unit in run for file in unit]
            if len(files) > 1:
                before += len(files)
                after += len(_merge(spark, table, target, files))
    return before - after


def rebuild(spark: SparkSession, lake: Lake, table: Table) -> int:
    """Make a table anew from the table of all events; how many rows it has."""
    if table is EVENTS:
        raise LakeError(
            "events cannot be rebuilt: the other tables are made from it, and the log forgets what it has"
        )
    origin = lake.origin()
    archive = lake_table(lake, EVENTS)
    target = lake_table(lake, table)
    target.make()
    events = read(spark, archive)
    facts = ask(events)
    old = target.files()
    if facts is None:
        return 0
    nothing = read(spark, lake_table(lake, TABLES["leases"]), [])
    write_files(table, target, table.merge(table.parts(Batch(events, 0, nothing, 0, facts.newest), 0)))
    reached = max(archive.reached(origin), facts.end)
    added = target.replace(old, origin, facts.first, facts.end, reached, {"rebuilt": "true"})
    publish(spark, lake, table, everything=True)
    return sum(file.rows for file in added)


def vacuum(lake: Lake, hours: float = LAKE_VACUUM_HOURS) -> int:
    tables = [lake_table(lake, table, _STAGING) for table in TABLES.values()]
    tables += [public_table(lake, table) for table in TABLES.values() if table.in_parts]
    return sum(table.vacuum(hours) for table in tables if table.exists())


class Housekeeper:
    """Compacts, publishes and removes beside the stream, in a thread of its own, whenever a batch has been written.

    Publishing takes at most an eleventh of the time: the longer it took, the longer until it is done again."""

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._due = threading.Event()
        self._ended = False
        self._vacuumed_at = time.monotonic()
        self._publish_at = 0.0
        self._thread = threading.Thread(target=self._run, name="housekeeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._due.set()

    def stop(self) -> None:
        """What is under way is dropped: it changes nothing before its commit."""
        self._ended = True
        self._spark.sparkContext.cancelJobGroup(_JOBS)
        self._due.set()
        self._thread.join()

    def _run(self) -> None:
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", _JOBS)
        self._spark.sparkContext.setJobGroup(_JOBS, "compacts and publishes", interruptOnCancel=True)
        written = False  # Since the last publication.
        while not self._ended:
            if self._due.wait(LAKE_PUBLISH_SECONDS):
                self._due.clear()
                written = True
                self._each("compact", lambda table: compact(self._spark, self._lake, table))
                self._vacuum()
            if written and time.monotonic() >= self._publish_at:
                written = False
                self._publish()

    def _publish(self) -> None:
        begun = time.monotonic()
        self._each("publish", lambda table: publish(self._spark, self._lake, table))
        taken = time.monotonic() - begun
        self._publish_at = time.monotonic() + max(LAKE_PUBLISH_SECONDS, LAKE_PUBLISH_REST * taken)

    def _vacuum(self) -> None:
        if time.monotonic() - self._vacuumed_at > _VACUUM_SECONDS:
            self._vacuumed_at = time.monotonic()
            self._try("remove old files", lambda: vacuum(self._lake))

    def _each(self, verb: str, look_after: Callable[[Table], object]) -> None:
        for table in TABLES.values():
            if not self._ended:
                self._try(f"{verb} {table.name}", partial(look_after, table))

    def _try(self, what: str, do: Callable[[], object]) -> None:
        try:
            do()
        except (LakeError, PySparkException, Py4JError, OSError) as error:
            # The table is as it was, and the next batch is a next chance.
            if not self._ended:
                logger.warning("could not %s: %s", what, error)


def _runs(units: Sequence[Unit]) -> Iterator[list[Unit]]:
    """Neighbours of one size, where there are many."""
    for size, group in groupby(units, key=_size_class):
        run = list(group)
        if size is not None and len(run) >= LAKE_FILES_MIN:
            yield run


def _size_class(unit: Unit) -> int | None:
    """None: large enough."""
    size = sum(file.bytes for file in unit)
    if size >= LAKE_FILE_BYTES:
        return None
    return max(0, (size // _SMALL_BYTES).bit_length() // (LAKE_FILES_MIN.bit_length() - 1))


def _merge(spark: SparkSession, table: Table, target: LakeTable, files: list[LakeFile]) -> list[LakeFile]:
    count = ceil(sum(file.bytes for file in files) / LAKE_FILE_BYTES)
    write_files(table, target, table.merge(read(spark, target, files)), count)
    return target.compact(files, {"compacted": str(len(files))})
