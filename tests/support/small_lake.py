"""A lake with a few minutes of queues, written without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
from deltalake import write_deltalake

from penstock.pipeline.lake.delta import PARTITION
from penstock.pipeline.lake.directory import LAKE_FORMAT, PARTS, Origin
from penstock.pipeline.lake.tables import COUNTED, HISTOGRAMS, QUEUE_MINUTES


def write_minutes(lake: Path, *minutes: tuple[str, int, int], waits: Mapping[str, int] = {}) -> None:
    """Each: a queue, when a minute begins in seconds since the epoch, and how many messages came then. `waits`: the
    bucket of the histograms, by queue."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(queue for queue, _, _ in minutes), 1)}
    rows = [
        _row(queue, numbers[queue], datetime.fromtimestamp(begins, UTC), came, waits.get(queue, 100))
        for queue, begins, came in minutes
    ]
    lake.mkdir(parents=True)
    (lake / "penstock.json").write_bytes(msgspec.json.encode(Origin(LAKE_FORMAT, ("log",))))
    table = pa.Table.from_pylist(rows, schema=QUEUE_MINUTES.schema)
    write_deltalake(str(lake / PARTS / "queue_minutes"), table, partition_by=[PARTITION])


def _row(queue: str, number: int, minute: datetime, came: int, bucket: int) -> dict[str, object]:
    counts = dict.fromkeys((*COUNTED, "gone"), 0) | {"messages_in": came}
    histograms = {name: [(bucket, came)] for name in HISTOGRAMS}
    return {"queue": queue, "queue_number": number, "minute": minute, "date": minute.date(), **counts, **histograms}
