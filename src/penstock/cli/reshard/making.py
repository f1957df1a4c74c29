"""Moves a store with one shard to several: recovers it as a broker would, and divides its state.

Nothing of the old directory changes before all shards are complete and on the disk. A run that is cut off is begun
anew, or, if the shards count already, only tidied up.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from penstock.broker.recovery import Recovered, recover
from penstock.broker.shard_map import ShardMap, shard_of_version
from penstock.cli.exits import CommandError, Exit
from penstock.cli.shards import check_empty
from penstock.config.config import Config, LogConfig
from penstock.engine.engine import Engine
from penstock.engine.snapshot import sections_of
from penstock.engine.split import Division, part_of
from penstock.engine.state import EngineState
from penstock.errors import DamagedLogError, DataDirectoryError
from penstock.model.values import Nanos
from penstock.storage.backup.making import Progress
from penstock.storage.directory import DataDirectory, Identity
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.history.splitting import split_history
from penstock.storage.log.batch import Point
from penstock.storage.plain_files import make_private
from penstock.storage.port import Section
from penstock.storage.resharding import (
    UNFINISHED,
    Attempt,
    begin_shard,
    bytes_needed,
    earlier_attempt,
    finish,
    make_whole,
    shard_path,
    switch,
    tidy,
    undo,
    write_shard,
)
from penstock.storage.shards import SHARDS_FORMAT, Shards, read_shards

_SEGMENT_BYTES = 1 << 20  # No more than this is reserved for logs that are only read.


class ShardFacts(msgspec.Struct, frozen=True):
    shard: int
    queues: int
    messages: int
    bytes: int  # Of its messages.


class Resharded(msgspec.Struct, kw_only=True):
    directory: str
    earlier: Attempt
    shards: list[ShardFacts] = []
    offset: int = 0  # Where the old log ended.
    elsewhere: int = 0  # Queues that are in another shard than a new queue of that name would be.


def reshard(source: Path, shards: int, to: Path | None, progress: Progress) -> Resharded:
    """Move the store in `source` to so many shards, there or in the new directory `to`."""
    target = to or source
    earlier = earlier_attempt(target)
    if earlier is Attempt.MADE:
        return _tidied(source, target, shards)
    _check_source(source)
    if to is not None and earlier is Attempt.NONE:
        check_empty(to)
    data = DataDirectory(source)
    data.open()
    try:
        if earlier is Attempt.UNFINISHED:
            undo(target)
        make_private(target / UNFINISHED)
        _check_space(data, target, shards)
        moved = _Resharding(data, target, shards, progress).run()
    except OSError as error:
        remedy = f"{source} still has everything; correct this, and run it again"
        raise CommandError(f"cannot write {target}: {error}; {remedy}") from error
    finally:
        data.close()
    return msgspec.structs.replace(moved, earlier=earlier)


def _tidied(source: Path, target: Path, shards: int) -> Resharded:
    """The shards count already: nothing is left to do but to remove what nobody needs."""
    found = read_shards(target)
    assert found is not None
    if source != target and found.id_key != DataDirectory(source).read_identity().id_key:
        raise CommandError(f"{target} is another store: nothing is overwritten; choose another path", Exit.USAGE)
    if found.shards != shards:
        raise CommandError(
            f"{target} has {found.shards} shards, and only a store with one shard can be moved to several; keep this"
            " number, or make a new store and let clients move their messages",
            Exit.USAGE,
        )
    tidy(target)
    return Resharded(directory=str(target), earlier=Attempt.MADE, elsewhere=len(found.elsewhere))


def _check_source(source: Path) -> None:
    identity = DataDirectory(source).read_identity()
    if identity.shards > 1:
        raise CommandError(f"{source} is one of {identity.shards} shards; name a store with one shard", Exit.USAGE)
    if (source / "shards").exists() and not (source / UNFINISHED).exists():
        raise DataDirectoryError(f"{source} has both penstock.json and shards; choose another directory with --to")


def _check_space(data: DataDirectory, target: Path, shards: int) -> None:
    needed, free = bytes_needed(data, target, shards), shutil.disk_usage(target).free
    if needed > free:
        undo(target)
        raise CommandError(
            f"{shards} shards in {target} need about {needed >> 20:,} MiB, and {free >> 20:,} MiB are free;"
            " free some space, or choose another disk with --to"
        )


class _Resharding:
    def __init__(self, source: DataDirectory, target: Path, shards: int, progress: Progress) -> None:
        assert source.identity is not None
        self._source = source
        self._identity = source.identity
        self._target = target
        self._shards = shards
        self._progress = progress

    def run(self) -> Resharded:
        whole = make_whole(self._source, self._target)
        engine, end = self._recovered(whole)
        self._progress.expect(2 * _messages(engine))
        stored = self._stored(engine)
        self._write(whole, engine, end, stored)
        facts = [self._checked(shard) for shard in range(self._shards)]
        if sum(each.messages for each in facts) != _messages(engine):
            raise DamagedLogError(f"the shards do not have all messages of {self._source.path}: please report this")
        switch(self._target, stored)
        tidy(self._target)
        counts = {"offset": end.offset, "elsewhere": len(stored.elsewhere)}
        return Resharded(directory=str(self._target), earlier=Attempt.NONE, shards=facts, **counts)

    def _recovered(self, whole: DataDirectory) -> tuple[Engine, Point]:
        """The state, and where the log ends. The history beside it is complete then."""
        engine, log, history = self._recover(whole)
        if history.noted > history.reached:
            history.settle(log.start.position)
        history.close()
        log.close()
        whole.close()
        finish(whole, log.end)
        return engine, log.end

    def _recover(self, directory: DataDirectory) -> Recovered:
        directory.open()
        try:
            return recover(directory, Config(data=directory.path, log=LogConfig(segment_bytes=_SEGMENT_BYTES)))
        except DamagedLogError as error:
            undo(self._target)
            advice = f"make a directory that can be read with `penstock log salvage {self._source.path} OUT`"
            raise DamagedLogError(f"{error}. {self._source.path} is unchanged; {advice}") from error

    def _stored(self, engine: Engine) -> Shards:
        """What `shards.json` will hold: queues stay in the shard of their number."""
        by_hash, by_number = ShardMap(self._shards).of_name, ShardMap(self._shards).of_number
        places = {queue.name: by_number(number) for number, queue in engine.queues.items()}
        elsewhere = {name: shard for name, shard in places.items() if shard != by_hash(name)}
        return Shards(SHARDS_FORMAT, self._shards, self._identity.id_key, elsewhere)

    def _write(self, whole: DataDirectory, engine: Engine, end: Point, stored: Shards) -> None:
        where = ShardMap(self._shards, stored.elsewhere)
        directories = [begin_shard(self._target, shard, whole) for shard in range(self._shards)]
        if whole.history.exists():
            targets = [directory.history for directory in directories]
            split_history(whole.history, targets, partial(shard_of_version, shards=self._shards))
        now = max(time.time_ns(), engine.time + 1)
        ancestry = self._identity.successor(end.offset)
        for shard, directory in enumerate(directories):
            identity = msgspec.structs.replace(ancestry, shard=shard, shards=self._shards)
            self._write_shard(directory, identity, engine, end, where, now)

    def _write_shard(
        self, directory: DataDirectory, identity: Identity, engine: Engine, end: Point, where: ShardMap, now: Nanos
    ) -> None:
        history = ObjectHistory(directory.history)
        try:
            part = part_of(engine, identity.shard, Division(self._shards, where.of_name, end.offset), history)
            sections = self._counted(sections_of(part))
            write_shard(directory, identity, end, sections, engine.names.next_number(engine.names.last), now)
        finally:
            history.close()

    def _counted(self, sections: Iterable[Section]) -> Iterator[Section]:
        for section in sections:
            yield section
            if section[0] == "rows":
                self._progress.advance(len(section[2][0]))

    def _checked(self, shard: int) -> ShardFacts:
        """Recover a shard as a broker would, and count what it has."""
        directory = DataDirectory(shard_path(self._target, shard))
        engine, log, history = self._recover(directory)
        history.close()
        log.close()
        directory.close()
        self._progress.advance(_messages(engine))
        return ShardFacts(shard, len(engine.queues), _messages(engine), _bytes(engine))


def _messages(state: EngineState) -> int:
    return sum(queue.rows.count for queue in state.queues.values())


def _bytes(state: EngineState) -> int:
    """The size of all messages. One that is in two queues counts twice."""
    tables = (rows for queue in state.queues.values() for _, rows in queue.rows.tables())
    sizes = (
        rows[name].sum(dtype=np.int64) for rows in tables for name in ("body_bytes", "key_bytes", "headers_bytes")
    )
    return int(sum(sizes))
