"""Whether the shards of a store that nobody serves fit each other."""

from __future__ import annotations

from pathlib import Path

from penstock.cli.log.state import examine
from penstock.engine.engine import Engine
from penstock.storage.directory import DataDirectory
from penstock.storage.log.files import LogFiles
from penstock.storage.shards import read_shards, shard_directory


def misfits(store: Path) -> list[str]:
    """What one shard has or has forgotten that another one cannot know."""
    stored = read_shards(store)
    assert stored
    directories = [shard_directory(store, shard) for shard in range(stored.shards)]
    engines = [_engine(directory) for directory in directories]
    ends = [LogFiles(directory).view().end.offset for directory in directories]
    pairs = [(source, target) for source in range(stored.shards) for target in range(stored.shards)]
    return [
        sentence
        for source, target in pairs
        if source != target
        for sentence in _misfits(source, target, engines[source], engines[target], ends[source])
    ]


def _engine(directory: DataDirectory) -> Engine:
    report, engine = examine(directory)
    assert engine, report.problems
    return engine


def _misfits(source: int, target: int, gives: Engine, takes: Engine, end: int) -> list[str]:
    cursor, outbox = takes.couriers.cursor(source), gives.couriers.outbox(target)
    forgotten = next(iter(outbox.messages), outbox.last + 1) - 1
    found = []
    if cursor.offset > end:
        found.append(f"shard {target} has read shard {source} up to {cursor.offset}, which ends at {end}")
    if cursor.serial > outbox.last:
        found.append(f"shard {target} has message {cursor.serial} of shard {source}, which sent {outbox.last}")
    if forgotten > cursor.serial:
        found.append(f"shard {source} has forgotten message {forgotten}; shard {target} has {cursor.serial}")
    return found
