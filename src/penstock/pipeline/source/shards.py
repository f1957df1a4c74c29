"""The logs of all shards of a broker or of a data directory. Most have one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from penstock.pipeline.source.broker import BrokerLog
from penstock.pipeline.source.files import FileLog
from penstock.pipeline.source.log import EventLog, Extent, NameTable
from penstock.pipeline.source.options import Options
from penstock.storage.shards import read_shards, shard_directory


class ShardLogs:
    def __init__(self, options: Options) -> None:
        self._options = options

    @cached_property
    def logs(self) -> Sequence[EventLog]:
        """The log of each shard, by its number."""
        count = self._count()
        return [open_log(self._options, shard, count) for shard in range(count)]

    def extents(self) -> list[Extent]:
        return [log.extent() for log in self.logs]

    def names(self) -> list[NameTable]:
        """The names in the log of each shard. A record may refer to a queue of another shard, so each table has the
        queues of all; their numbers differ."""
        found = [log.names() for log in self.logs]
        if len(found) == 1:
            return found
        queues = {number: name for names in found for number, name in names.queues.items()}
        return [NameTable(names.texts, queues) for names in found]

    def close(self) -> None:
        for log in self.__dict__.get("logs", ()):
            log.close()

    def _count(self) -> int:
        if self._options.path is not None:
            return _count_shards(Path(self._options.path))
        with closing(_broker_log(self._options)) as log:
            return log.shards()


class Needed(NamedTuple):
    """Which names a task needs: those of these logs that were known when its offsets were chosen."""

    logs: tuple[str, ...]  # By shard.
    named_to: tuple[int, ...]


_here: dict[tuple[str, ...], ShardLogs] = {}  # By log. Spark runs many tasks in a process, one after the other.


def names_here(options: Options, needed: Needed) -> list[NameTable]:
    """The names in the log of each shard, asked for when this process does not know them yet."""
    store = _here.get(needed.logs)
    if store is None or any(log.named_to < to for log, to in zip(store.logs, needed.named_to, strict=True)):
        store = store or ShardLogs(options)
        store.extents()
        store.close()
        _here[needed.logs] = store
    return store.names()


def open_log(options: Options, shard: int = 0, shards: int = 1) -> EventLog:
    """The log of one shard of so many."""
    if options.path is not None:
        path = Path(options.path)
        return FileLog(path if shards == 1 else shard_directory(path, shard).path)
    return _broker_log(options, shard if shards > 1 else None)


def _broker_log(options: Options, shard: int | None = None) -> BrokerLog:
    assert options.url is not None
    return BrokerLog(options.url, options.token, options.trust, shard)


def _count_shards(path: Path) -> int:
    stored = None if (path / "penstock.json").exists() else read_shards(path)
    return stored.shards if stored else 1
