"""`penstock log salvage`: make a data directory that starts from one that does not, and list what is lost."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from penstock.cli.exits import CommandError
from penstock.cli.log.losses import Losses, QueueLosses, Range
from penstock.cli.log.mending import Mender
from penstock.cli.log.rebuild import rebuild_history
from penstock.cli.shards import check_empty
from penstock.engine.engine import Engine
from penstock.engine.history import NoHistory
from penstock.engine.slots import STORED
from penstock.errors import DamagedLogError, DataDirectoryError, HistoryError, InUseError
from penstock.model.events import Unstaged
from penstock.model.values import Place, Position, Version
from penstock.storage.backup.making import Progress
from penstock.storage.directory import DataDirectory, Identity, check_files, new_identity, write_durably
from penstock.storage.history.copying import history_reached
from penstock.storage.inspect import holder
from penstock.storage.log.batch import START, Point
from penstock.storage.log.continuing import HOLE_BYTES
from penstock.storage.log.names import names_defined
from penstock.storage.log.snapshot import list_snapshots, publish_snapshot, read_facts, read_snapshot, write_snapshot
from penstock.storage.plain_files import make_private
from penstock.storage.salvage import Advance, SoundLog, SoundWriter
from penstock.storage.shards import Shards, shard_directory, write_shards

REPORT = "salvage.json"
_NEVER_REACHED = 1 << 32  # More events than can be lost.


def salvage(data: Path, out: Path, expect: Callable[[int], None], advance: Advance) -> Losses:
    """Make `out` from everything in `data` that can be read. `data` is not changed."""
    check_files(data)
    if process := holder(data):
        raise InUseError(f"{data} is in use by process {process}; stop the broker first")
    check_empty(out)
    source, target = DataDirectory(data), DataDirectory(out)
    identity, notes = _identity(source)
    for folder in (out, target.log, target.snapshots):
        make_private(folder)
    try:
        return _Salvage(source, target, identity, notes).run(expect, advance)
    except OSError as error:
        raise CommandError(f"cannot write {out}: {error}; free some space, remove {out} and run it again") from error


def salvage_shards(data: Path, stored: Shards, out: Path, progress: Progress) -> list[Losses]:
    """As `salvage`, for all shards of a store. It counts when all are made."""
    check_empty(out)
    sizes = [SoundLog(shard_directory(data, shard), shard).size for shard in range(stored.shards)]
    progress.expect(sum(sizes))
    losses = [
        salvage(shard_directory(data, shard).path, shard_directory(out, shard).path, lambda _: None, progress.advance)
        for shard in range(stored.shards)
    ]
    write_shards(out, stored)
    return losses


def _identity(source: DataDirectory) -> tuple[Identity, list[str]]:
    try:
        return source.read_identity(), []
    except DataDirectoryError as error:
        if not source.log.is_dir() or "has format" in str(error):
            raise
        return new_identity(), [
            "penstock.json cannot be read: message ids that were given out are not valid any more."
        ]


class _Salvage:
    def __init__(self, source: DataDirectory, target: DataDirectory, identity: Identity, notes: list[str]) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._notes = notes
        self._log = SoundLog(source, identity.shard)
        self._writer = SoundWriter(target, identity.shard)
        self._has_keys = False

    def run(self, expect: Callable[[int], None], advance: Advance) -> Losses:
        expect(self._log.size)
        texts: dict[int, str] = {}
        for sound in self._writer.write(self._log.batches(advance)):
            texts |= names_defined(sound.header, sound.payload)
            self._has_keys |= sound.has_keys
        engine, start = self._restored()
        mender = Mender(engine, texts)
        lost_events = self._replay(mender, start)
        mender.drop(_without_bytes(engine, self._writer.ranges))
        self._drop_results(engine)
        end = self._end(start)
        ends_open = self._log.ends_open or end.position > max(self._log.end.position, start.position)
        queues = mender.finish(ends_open=ends_open)
        identity = self._identity.successor(lost_events[0][0] if lost_events else end.offset)
        if lost_events or ends_open:
            end = self._past_cursors(engine, end)
        self._writer.close_at(end, engine.names.next_number(engine.names.last), max(time.time_ns(), engine.time + 1))
        write_snapshot(self._target.snapshots, engine.sections(), end, time.time_ns())
        publish_snapshot(self._target.snapshots, end.offset)
        self._rebuild_history(queues)
        losses = Losses(
            directory=str(self._target.path),
            log=identity.message_ids().log_id,
            offset=end.offset,
            snapshot=start.offset if start != START else None,
            events=lost_events,
            queues=queues,
            notes=self._notes + mender.notes(),
        )
        write_durably(self._target.path / REPORT, msgspec.json.format(msgspec.json.encode(losses)) + b"\n")
        write_durably(self._target.path / "penstock.json", msgspec.json.encode(identity) + b"\n")
        return losses

    # ── The state ───────────────────────────────────────────────────────────────────────────────────────────

    def _restored(self) -> tuple[Engine, Point]:
        """The state of the newest snapshot that can be read, and where it ends."""
        for path in list_snapshots(self._source.snapshots):
            engine = self._new_engine()
            try:
                facts = read_facts(path)
                engine.restore(read_snapshot(path))
                return engine, facts.point
            except DamagedLogError:
                self._notes.append(f"{path.name} is damaged and was not used.")
        return self._new_engine(), START

    def _new_engine(self) -> Engine:
        return Engine(NoHistory(), shard=self._identity.shard, shards=self._identity.shards)

    def _replay(self, mender: Mender, start: Point) -> list[Range]:
        """Apply the events after the snapshot. Returns the offsets of those that are lost."""
        lost: list[Range] = []
        reached = start.offset
        for sound in SoundLog(self._source, self._identity.shard).batches():
            if sound.header.end.offset <= start.offset:
                continue
            if sound.header.base_offset > reached:
                lost.append((reached, sound.header.base_offset - 1))
                mender.lose(sound.header.base_offset - reached)
            for offset, event, position in sound.events():
                if offset >= start.offset:
                    mender.apply(event, position)
            reached = sound.header.end.offset
        return lost

    def _drop_results(self, engine: Engine) -> None:
        """Results and staged rows whose bytes are lost."""
        inside = partial(_inside, self._writer.ranges)
        lost = 0
        for queue in engine.queues.values():
            for places, slots in list(queue.groups.tables()):
                stored = slots["state"] == STORED
                gone = stored & ~inside(slots["value"].astype(np.int64), slots["size"].astype(np.int64))
                for sequence, receiver in places[gone].tolist():
                    queue.groups.decline(receiver, sequence)
                    lost += 1
        if lost:
            self._notes.append(f"{lost:,} results of receivers are lost.")
        for key, batch in list(engine.staging.batches.items()):
            chunks = [chunk for part in batch.parts.values() for chunk in part]
            at = np.array([(chunk[0], chunk[1]) for chunk in chunks], dtype=np.int64).reshape(-1, 2)
            if not inside(at[:, 0], at[:, 1]).all():
                engine.evolve(Unstaged(engine.time, *key), 0)
                self._notes.append(f"Staged rows of the Spark query {key[0]}, batch {key[1]}, are lost.")

    # ── The end of the log ──────────────────────────────────────────────────────────────────────────────────

    def _end(self, start: Point) -> Point:
        """Where the new log goes on: after everything that was ever written, as far as that is known."""
        reached = 0
        try:
            reached = history_reached(self._source.history) or 0
        except HistoryError as error:
            self._notes.append(f"The Object History cannot be read: {error}.")
        ends = (self._log.end, start)
        return Point(max(end.offset for end in ends), max(reached, *(end.position for end in ends)))

    def _past_cursors(self, engine: Engine, end: Point) -> Point:
        """Other shards may have come further in this log than it reaches now. It goes on where none of them has been,
        so that they miss nothing that is sent to them from now on."""
        others = set(range(self._identity.shards)) - {self._identity.shard}
        for shard in others:
            engine.couriers.outbox(shard).last += _NEVER_REACHED
        return Point(end.offset + _NEVER_REACHED, end.position + HOLE_BYTES) if others else end

    def _rebuild_history(self, queues: list[QueueLosses]) -> None:
        """Rebuild the Object History. A version whose message is lost counts as never published, so that it can be
        published again."""
        if not self._has_keys and not self._source.history.exists():
            return
        forgotten = partial(_is_lost, {queue.number: queue.lost + queue.unknown for queue in queues})
        old = self._source.history / "data.mdb"
        for file in [old, None] if old.exists() else [None]:
            shutil.rmtree(self._target.history, ignore_errors=True)
            try:
                if file:
                    self._target.history.mkdir(mode=0o700)
                    shutil.copyfile(file, self._target.history / "data.mdb")
                self._notes += rebuild_history(self._target, self._identity, show=False, forgotten=forgotten)[1:]
                return
            except (HistoryError, DamagedLogError) as error:
                self._notes.append(f"The Object History: {error}.")
        shutil.rmtree(self._target.history, ignore_errors=True)
        self._notes.append("The Object History is lost: every key counts as new.")


def _is_lost(lost: dict[int, list[Range]], version: Version) -> bool:
    ranges = lost.get(version.queue, ())
    return any(first <= version.sequence and (last is None or version.sequence <= last) for first, last in ranges)


def _without_bytes(engine: Engine, ranges: list[tuple[Position, Position]]) -> Iterator[Place]:
    """Messages whose bytes are in no segment."""
    for number, queue in engine.queues.items():
        for sequences, rows in list(queue.rows.tables()):
            sizes = rows["body_bytes"].astype(np.int64) + rows["key_bytes"] + rows["headers_bytes"]
            found = _inside(ranges, rows["position"].astype(np.int64), sizes)
            yield from ((number, sequence) for sequence in sequences[~found].tolist())


def _inside(
    ranges: list[tuple[Position, Position]], first: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """For each extent, whether it lies in one of the ranges."""
    bounds = np.array([(0, 0), *ranges], dtype=np.int64)
    index = np.searchsorted(bounds[:, 0], first, side="right") - 1
    found: NDArray[np.bool_] = (sizes == 0) | (first + sizes <= bounds[index, 1])
    return found
