"""The messages of a store with several shards that nobody serves."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from penstock.engine.engine import Engine
from penstock.storage.log.segments import SegmentLog
from penstock.storage.shards import read_shards, shard_directory


def contents(data: Path, segment_bytes: int) -> dict[str, Counter[int]]:
    """The bodies in all queues, which are numbers."""
    stored = read_shards(data)
    assert stored
    found: dict[str, Counter[int]] = {}
    for shard in range(stored.shards):
        directory = shard_directory(data, shard)
        directory.open()
        log, engine = SegmentLog(directory, segment_bytes=segment_bytes), Engine(shard=shard, shards=stored.shards)
        sections, events = log.recover()
        engine.restore(sections or ())
        for event, position in events:
            engine.evolve(event, position)
        for queue in engine.queues.values():
            rows = [row for each in range(1, queue.last_sequence + 1) if (row := queue.rows.get(each))]
            found[queue.name] = Counter(int(log.read(row.position, row.body_bytes)) for row in rows)
        log.close()
        directory.close()
    return found
