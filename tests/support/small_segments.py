"""A log whose segments have room for three batches of one message."""

from __future__ import annotations

from pathlib import Path

from penstock.model.events import Event
from penstock.model.values import Stage
from penstock.storage.log.batch import HEADER_BYTES, RECORD_BYTES
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES
from penstock.storage.log.segments import SegmentLog
from tests.support.samples import commit, logged, open_log, recover

BODY = b"x" * 100
BATCH_BYTES = HEADER_BYTES + len(BODY) + RECORD_BYTES
SEGMENT_BYTES = SEGMENT_HEADER_BYTES + 3 * BATCH_BYTES  # Three batches of one message fit.


def write(log: SegmentLog, count: int, first: int = 1) -> list[tuple[Event, int]]:
    """Batches of one message each."""
    written: list[tuple[Event, int]] = []
    for sequence in range(first, first + count):
        event = logged(sequence, BODY)
        written.append((event, log.append(event)))
        assert commit(log) == [Stage.WRITE, Stage.SYNC]
    return written


def reopened(path: Path) -> tuple[SegmentLog, list[tuple[Event, int]]]:
    log = open_log(path, SEGMENT_BYTES)
    return log, recover(log)
