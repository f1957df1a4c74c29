"""The first segment after a hole in a log, or after the part that it has in common with other logs."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.model.events import NameDefined, NameForgotten
from penstock.model.values import Nanos
from penstock.storage.directory import create_private
from penstock.storage.log.batch import Point
from penstock.storage.log.encode import Batch
from penstock.storage.log.segment import Segment, segment_path

HOLE_BYTES = 64  # Readers of a log see nothing before a hole in its positions.


def continue_log(directory: Path, shard: int, start: Point, why: tuple[int, str], now: Nanos) -> None:
    """Make a segment with one batch, because readers find a hole only before one. It has a name that is forgotten at
    once, which readers of events do not see. `why`: a number that no name has, and its text."""
    batch = Batch(*start)
    batch.add(NameDefined(now, *why))
    batch.add(NameForgotten(now, *why))
    path = segment_path(directory, start.offset)
    with create_private(path) as file:
        file.write(Segment(path, shard, *start, now).header() + batch.seal(now))
        file.flush()
        os.fsync(file.fileno())
