"""Logs and snapshots that tests spoil: how they are written, and how a bit of them is flipped."""

from __future__ import annotations

from pathlib import Path

from penstock.engine.engine import Engine
from penstock.limits import SECOND_NS
from penstock.model.commands import Command
from penstock.model.events import Event
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.snapshot import snapshot_path
from tests.support.samples import commit

SEGMENT_BYTES = 720
Written = list[tuple[Event, int]]


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def engine_of(log: SegmentLog) -> Engine:
    engine = Engine()
    recovered = log.recover()
    if recovered.sections is not None:
        engine.restore(recovered.sections)
    for event, position in recovered.events:
        engine.evolve(event, position)
    return engine


def work(engine: Engine, log: SegmentLog, command: Command) -> None:
    for event in engine.decide(command, now=engine.time + SECOND_NS).events:
        engine.evolve(event, log.append(event))
    if log.collecting:
        commit(log)


def snapshot(engine: Engine, log: SegmentLog) -> Path:
    log.write_snapshot(engine.sections(), log.appended, engine.time)
    log.publish_snapshot(log.appended.offset)
    return snapshot_path(log.directory.snapshots, log.appended.offset)
