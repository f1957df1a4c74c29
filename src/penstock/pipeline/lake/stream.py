"""The stream that fills the lake: one query over the log, and in each batch a commit to every table.

The events of a batch are decoded once, into files of the table `events`; the other tables are made from those files.
Each table records how far it is in its Delta log, so a batch that is repeated, or divided differently, adds nothing.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.util import inheritable_thread_target

from penstock.errors import SparkError
from penstock.limits import LAKE_BYTES_PER_BATCH, LAKE_EVENTS_PER_BATCH
from penstock.pipeline.lake.batch import NOTHING, Batch
from penstock.pipeline.lake.delta import Covered, Offsets, after
from penstock.pipeline.lake.directory import Lake, Origin
from penstock.pipeline.lake.files import Range, ask, read, read_footers, write_files
from penstock.pipeline.lake.recipes import RECIPES
from penstock.pipeline.lake.tables import EVENTS, LEASES, QUEUE_MINUTES, TABLES, Table, parts_table
from penstock.pipeline.metrics import measured
from penstock.pipeline.session import silence
from penstock.pipeline.source.columns import COLUMNS

_EVENTS_PER_FILE = 200_000
_FINISH_SECONDS = 45.0  # The first batch after a cold start on a busy machine takes as long.
_LOOK_SECONDS = 0.2
_WRITERS = 4
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Written(NamedTuple):
    """What a batch has written."""

    batch: int
    events: int
    end: int  # The number of records of the log, in all shards together, that the tables have,
    newest: datetime  # the time of the last one,
    at: datetime  # and when it was there.
    seconds: float
    rows: Mapping[str, int]  # By table.


class Filler:
    """Writes the batches of a query into the tables of a lake."""

    def __init__(
        self,
        lake: Lake,
        origin: Origin,
        on_written: Callable[[Written], None] = lambda _: None,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        lake.origin()  # Raises `LakeError` for a lake of another format.
        self._origin = origin
        self._on_written = on_written
        self._on_step = on_step
        self._writing = threading.Lock()
        self._closed = False
        self.tables = {name: parts_table(lake, table) for name, table in TABLES.items()}
        for table in self.tables.values():
            table.make()
        # Whether the next batch certainly begins where `events` ends. Nothing can be repeated in a new lake.
        self._in_order = not any(self.tables[EVENTS.name].reached(origin))

    def reached(self) -> Offsets:
        """The offset of each shard up to which all tables are complete."""
        return tuple(map(min, zip(*(table.reached(self._origin) for table in self.tables.values()), strict=True)))

    def close(self) -> None:
        """Refuse further batches. Spark repeats them after the next start."""
        self._closed = True

    def is_idle(self, seconds: float) -> bool:
        """Wait up to `seconds` until no batch is being written. Returns whether that is so."""
        if self._writing.acquire(timeout=seconds):
            self._writing.release()
            return True
        return False

    def write(self, frame: DataFrame, number: int) -> None:
        """Write one batch of events. Spark calls this."""
        with self._writing:
            if self._closed:
                raise SparkError("the pipeline is stopping")
            self._write_batch(frame, number)

    def _write_batch(self, frame: DataFrame, number: int) -> None:
        begun = time.perf_counter()
        noted = {"batch": str(number), "query": _query_id(frame.sparkSession)}
        events_table = self.tables[EVENTS.name]
        self._on_step(f"batch {number}: reading the log")
        if not self._in_order:
            found = ask(frame)
            if found is None:
                return
            reached = events_table.reached(self._origin)
            self._in_order = all(first >= reached[shard] for shard, (first, _) in found.covered.items())
            if not self._in_order:
                self._write_again(frame, found, noted)
                return
        write_files(EVENTS, events_table, RECIPES[EVENTS].parts(_events_only(frame, {}), NOTHING))
        facts = read_footers(events_table.staged())
        if facts is None:
            return
        files = events_table.append(self._origin, facts.covered, noted)
        rows = {EVENTS.name: facts.rows}
        rows |= self._write_others(read(frame.sparkSession, events_table, files), facts, noted)
        seconds = time.perf_counter() - begun
        end = sum(events_table.reached(self._origin))
        self._on_written(Written(number, facts.rows, end, facts.newest, datetime.now(UTC), seconds, rows))

    def _write_again(self, frame: DataFrame, facts: Range, noted: dict[str, Any]) -> None:
        """Write a batch that some tables already have in part, after a crash; its events are read from the log
        again."""
        table = self.tables[EVENTS.name]
        reached = table.reached(self._origin)
        if reached != after(reached, facts.covered):
            write_files(EVENTS, table, RECIPES[EVENTS].parts(_events_only(frame, facts.covered), reached))
            table.append(self._origin, facts.covered, noted)
        self._write_others(frame, facts, noted)

    def _write_others(self, events: DataFrame, facts: Range, noted: dict[str, Any]) -> dict[str, int]:
        leases = self.tables[LEASES.name]
        under_way = read(events.sparkSession, leases)
        shards = len(self._origin.names)
        batch = Batch(events, facts.covered, under_way, leases.reached(self._origin), facts.newest, shards)
        others = [table for table in TABLES.values() if table is not EVENTS]
        self._on_step(f"batch {noted['batch']}: writing {', '.join(table.name for table in others)}")
        # In parallel: planning and compiling a query use one core, and so do small jobs.
        write = inheritable_thread_target(events.sparkSession)(self._write)
        with ThreadPoolExecutor(_WRITERS) as pool:
            writes = {
                table.name: pool.submit(write, table, batch, facts, noted) for table in others if table is not LEASES
            }
            writes[
                QUEUE_MINUTES.name
            ].result()  # It is made from the old leases, so these are replaced only after it.
            writes[LEASES.name] = pool.submit(write, LEASES, batch, facts, noted)
            return {name: writing.result() for name, writing in writes.items()}

    def _write(self, table: Table, batch: Batch, facts: Range, noted: dict[str, Any]) -> int:
        target = self.tables[table.name]
        reached = target.reached(self._origin)
        if reached == after(reached, facts.covered):
            return 0
        if facts.keys or not table.keyed:
            write_files(table, target, RECIPES[table].parts(batch, reached), facts.rows // _EVENTS_PER_FILE + 1)
        old = target.files() if table.whole else []
        added = target.append(self._origin, facts.covered, noted, old)
        return sum(file.rows for file in added)


def _events_only(events: DataFrame, covered: Covered) -> Batch:
    """For the table of events, which needs nothing else."""
    return Batch(events, covered, events, NOTHING, _EPOCH)


def start_query(
    spark: SparkSession, lake: Lake, filler: Filler, source: Mapping[str, str], *, once: bool, seconds: float
) -> StreamingQuery:
    """Start the stream into the lake. `source` has options of `format("penstock")`."""
    options = {
        "columns": ",".join(COLUMNS),
        "maxEventsPerTrigger": str(LAKE_EVENTS_PER_BATCH),
        "maxBytesPerTrigger": str(LAKE_BYTES_PER_BATCH),
    }
    reached = filler.reached()
    if not lake.checkpoint.exists() and any(reached):  # The checkpoint was lost, but the tables have the offsets.
        options["startingOffset"] = json.dumps(dict(enumerate(reached)))
    reader = spark.readStream.format("penstock").options(**(options | dict(source)))
    writer = (
        measured(reader.load())
        .writeStream.foreachBatch(filler.write)
        .option("checkpointLocation", str(lake.checkpoint))
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{int(seconds * 1000)} milliseconds").start()


def stop_query(spark: SparkSession, query: StreamingQuery, filler: Filler, at_once: Callable[[], bool]) -> None:
    """End a query after the current batch, so that all tables end at the same offset. If the batch takes too long, or
    `at_once` returns true, the batch is dropped: tables that lack it read it from the log at the next start."""
    filler.close()
    deadline = time.monotonic() + _FINISH_SECONDS
    while query.isActive and not filler.is_idle(_LOOK_SECONDS) and not at_once() and time.monotonic() < deadline:
        pass
    silence(spark)
    query.stop()


def has_ended(query: StreamingQuery, seconds: float) -> bool:
    """Wait up to `seconds` for a query to end. Returns whether it has. Raises `SparkError` if it has failed."""
    try:
        return bool(query.awaitTermination(seconds))  # type: ignore[arg-type] # It takes fractions.
    except StreamingQueryException as error:
        raise SparkError(_cause(error)) from None


def _cause(error: StreamingQueryException) -> str:
    """The last line of Spark's long message that names an error."""
    lines = [line.strip() for line in str(error).splitlines()]
    named = [line for line in lines if re.match(r"(?!py4j)[\w.]+(Error|Exception)(: |$)", line)]
    return (named or lines)[-1]


def _query_id(spark: SparkSession) -> str:
    return spark.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
