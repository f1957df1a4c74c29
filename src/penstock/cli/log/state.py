"""The state that a start of a broker would find in a data directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.engine.engine import Engine
from penstock.engine.history import NoHistory
from penstock.engine.slots import STORED
from penstock.errors import DataDirectoryError
from penstock.limits import NEVER_NS
from penstock.model.settings import QueueSettings
from penstock.storage.directory import DataDirectory
from penstock.storage.inspect import Advance, Problem, Report, Severity, replay, scan
from penstock.storage.log.snapshot import read_snapshot

_TRIES = 5


class QueueReport(msgspec.Struct, frozen=True):
    number: int
    name: str
    settings: QueueSettings
    logged: int  # Messages that ever entered the queue.
    finished: int  # Messages that have left it, in any way.


def examine(data: DataDirectory, advance: Advance = lambda _: None) -> tuple[Report, Engine | None]:
    """Check the files, then rebuild the state from them. The engine is None if that fails."""
    for _ in range(_TRIES):
        report = scan(data, advance)
        if not report.starts:
            return report, None
        try:
            return report, _rebuild(data, report)
        except FileNotFoundError:
            continue  # The broker has removed a segment meanwhile.
    raise DataDirectoryError(f"{data.path} changes faster than it can be read: stop the broker, or try again")


def _rebuild(data: DataDirectory, report: Report) -> Engine | None:
    """Replay the log as a start would, and check that the bytes of every message exist."""
    identity = data.read_identity()
    engine = Engine(NoHistory(), shard=identity.shard, shards=identity.shards)
    last = None
    try:
        if report.snapshot:
            engine.restore(read_snapshot(Path(report.snapshot.path)))
        for offset, event, position in replay(data, report):
            last = offset
            engine.evolve(event, position)
    except FileNotFoundError:
        raise
    except Exception as error:  # Any failure of the engine means damaged data here, not a bug.
        where = "the snapshot cannot be restored" if last is None else f"event {last} cannot be applied"
        text = f"{where}: {type(error).__name__}: {error}"
        report.problems.append(Problem(Severity.DAMAGED, text, report.directory))
        return None
    report.problems += _homeless(engine, report)
    report.problems += _damaged(engine, report)
    return engine


_Numbers = NDArray[np.int64]


def _homeless(engine: Engine, report: Report) -> Iterator[Problem]:
    """Messages, results and staged rows whose bytes are not in any segment."""
    bases = np.array([segment.base_position for segment in report.segments], dtype=np.int64)
    ends = np.array([segment.end_position for segment in report.segments], dtype=np.int64)
    for queue in engine.queues.values():
        for sequences, rows in queue.rows.tables():
            sizes = rows["body_bytes"].astype(np.int64) + rows["key_bytes"] + rows["headers_bytes"]
            lost = sequences[~_inside(rows["position"].astype(np.int64), sizes, bases, ends)]
            if len(lost):
                text = f"queue {queue.name}: the bytes of {len(lost)} messages are in no segment, first {lost[0]}"
                yield Problem(Severity.DAMAGED, text, report.directory)
        for places, slots in queue.groups.tables():
            stored = slots["state"] == STORED
            first, sizes = slots["value"][stored].astype(np.int64), slots["size"][stored].astype(np.int64)
            lost = places[stored, 0][~_inside(first, sizes, bases, ends)]
            if len(lost):
                text = f"queue {queue.name}: {len(lost)} results are in no segment, first of message {lost[0]}"
                yield Problem(Severity.DAMAGED, text, report.directory)
    chunks = np.array([each[:2] for each in engine.staging.all_chunks()], dtype=np.int64).reshape(-1, 2)
    lost_chunks = np.count_nonzero(~_inside(chunks[:, 0], chunks[:, 1], bases, ends))
    if lost_chunks:
        text = f"{lost_chunks} chunks of staged rows are in no segment"
        yield Problem(Severity.DAMAGED, text, report.directory)


def _damaged(engine: Engine, report: Report) -> Iterator[Problem]:
    """Messages and results whose bytes lie in a damaged part of the log."""
    ranges = np.array(report.damaged, dtype=np.int64).reshape(-1, 2)
    for queue in engine.queues.values() if len(ranges) else ():
        rows = [rows for _, rows in queue.rows.tables()]
        sizes = [table["body_bytes"].astype(np.int64) + table["key_bytes"] + table["headers_bytes"] for table in rows]
        messages = sum(
            _count_in(ranges, *each) for each in zip([table["position"] for table in rows], sizes, strict=True)
        )
        stored = [slots[slots["state"] == STORED] for _, slots in queue.groups.tables()]
        results = sum(_count_in(ranges, slots["value"], slots["size"].astype(np.int64)) for slots in stored)
        for count, what in ((messages, "messages"), (results, "results")):
            if count:
                text = f"queue {queue.name}: {what} whose bytes are damaged: {count}"
                yield Problem(Severity.DAMAGED, text, report.directory, stops=False)


def _count_in(ranges: _Numbers, positions: NDArray[np.uint64], sizes: _Numbers) -> int:
    first = positions.astype(np.int64)
    following = np.searchsorted(ranges[:, 1], first, side="right")
    starts = np.append(ranges[:, 0], NEVER_NS)[following]
    return int(np.count_nonzero((starts < first + sizes) & (sizes > 0)))


def _inside(first: _Numbers, sizes: _Numbers, bases: _Numbers, ends: _Numbers) -> NDArray[np.bool_]:
    """For each extent, whether it lies in a segment."""
    if not len(bases):
        return np.zeros(len(first), np.bool_)
    index = np.searchsorted(bases, first, side="right") - 1
    inside: NDArray[np.bool_] = (index >= 0) & (first + sizes <= ends[index])
    return inside


def queues(engine: Engine) -> list[QueueReport]:
    return [
        QueueReport(
            queue.number,
            queue.name,
            queue.settings,
            queue.last_sequence,
            queue.last_sequence - queue.rows.count,
        )
        for queue in engine.queues.values()
    ]
