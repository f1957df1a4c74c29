"""What a backup reads while the broker serves: the log by positions, the newest snapshot, and the Object History.

Each request keeps all files of the log for a while longer, so that what was described can still be read. Readers
rest while the broker is busy, like those of the Event Log. The Object History is copied by a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import IO, Any, BinaryIO

import msgspec

from penstock.broker.figures.measures import Samples, one
from penstock.broker.room import Taken
from penstock.broker.services.audit import Audit
from penstock.broker.services.contract import Service, resolve
from penstock.broker.services.history_writes import HistoryWrites
from penstock.broker.services.log_reads import LogReads
from penstock.broker.services.pieces import PieceSource
from penstock.broker.services.questions import Answers
from penstock.broker.writer.port import ServicePort
from penstock.errors import EventsRemovedError, Fault, HistoryError, RequestError
from penstock.limits import BACKUP_PAUSE_SECONDS_MAX, BACKUP_PINNED_SECONDS, PIECE_BYTES
from penstock.model.audit import Actor, actor_of
from penstock.model.backups import (
    BackupState,
    ReadBackup,
    ReadBackupLog,
    ReadHistory,
    ReadSnapshot,
    SnapshotSize,
    StandStill,
    Still,
)
from penstock.model.client import Client
from penstock.model.permissions import ADMINISTER, require
from penstock.model.streams import Flow
from penstock.model.values import Position
from penstock.storage.backup.manifest import SnapshotState, SourceState
from penstock.storage.backup.source import source_state
from penstock.storage.directory import DataDirectory, Identity
from penstock.storage.log.parts import holds
from penstock.storage.log.snapshot import snapshot_path
from penstock.storage.log.view import Cursor, View

_RAW_PIECE_BYTES = 4 * PIECE_BYTES


class Backups(Service):
    def __init__(
        self,
        writer: ServicePort,
        reads: LogReads,
        audit: Audit,
        directory: DataDirectory,
        identity: Identity,
        history: HistoryWrites,
        *,
        is_stored: bool = False,
    ) -> None:
        """`is_stored`: the log is in a store, and the directory has a copy of it."""
        super().__init__(writer)
        self.open = 0
        self.bytes_sent = 0
        self._reads = reads
        self._directory = directory
        self._identity = identity
        self._history = history
        self._audit = audit
        self._is_stored = is_stored
        self._recorded: set[Actor] = set()  # Clients of the backups that are being made.
        self._pinned_until = 0.0
        self.answers: Answers = {
            ReadBackup: self.describe,
            StandStill: self.stand_still,
            ReadBackupLog: self.log,
            ReadSnapshot: self.snapshot,
            ReadHistory: self.history,
        }

    def state(self) -> Iterable[tuple[str, Samples]]:
        yield "penstock_backup_bytes_total", one(self.bytes_sent)

    @property
    def pinned(self) -> bool:
        """Whether a backup needs the files of the log."""
        return asyncio.get_running_loop().time() < self._pinned_until

    def _pin(self) -> None:
        self._pinned_until = asyncio.get_running_loop().time() + BACKUP_PINNED_SECONDS

    # ── Questions ───────────────────────────────────────────────────────────────────────────────────────────

    async def _begin(self, client: Client) -> None:
        """Record that a client makes a backup, with its first request. No files are kept once a backup is over."""
        require(client.access, ADMINISTER)
        if not self.pinned:
            self._recorded.clear()
        actor = actor_of(client)
        if actor not in self._recorded:
            await self._audit.note(client, "backup")
            self._recorded.add(actor)

    async def describe(self, client: Client, _: ReadBackup) -> BackupState:
        await self._begin(client)
        return _state(await self._reads.in_thread(self._noted()))

    def _noted(self) -> Callable[[], SourceState]:
        """What describes the state as it is now, in a thread."""
        self._pin()
        log, history = self.writer.log, self._history.history
        newest = SnapshotState(log.snapshots[0].offset, log.snapshots[0].bytes) if log.snapshots else None
        reached = history.reached or None
        view, now = log.view(), self.writer.now()
        return partial(source_state, self._identity, view, now, newest, reached)

    async def stand_still(self, client: Client, _: StandStill) -> Flow:
        """The state at a moment that all shards share: none of them commits from the first piece until the second is
        wanted. The second piece is the state; it is missing if this shard could not wait for it so long."""
        await self._begin(client)
        if self._is_stored and self._identity.shards > 1:
            raise RequestError(Fault.IN_STORE)  # Its shards move from process to process.
        return self._flow(self._moment_pieces())

    async def log(self, client: Client, query: ReadBackupLog) -> Flow:
        await self._begin(client)
        view, start, end = self.writer.log.view(), query.start, query.end
        if end > view.end.position:
            raise RequestError(Fault.PAST_END, str(view.end.offset), end=view.end.offset)
        if start < end and not holds(view.parts, start):
            raise EventsRemovedError(view.earliest().offset)
        return self._flow(self._log_pieces(view, start, end))

    async def snapshot(self, client: Client, query: ReadSnapshot) -> Flow:
        await self._begin(client)
        path = snapshot_path(self._directory.snapshots, query.offset)
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise RequestError(Fault.NOT_FOUND, f"snapshot {query.offset}; it was replaced, so begin again") from None
        return self._flow(self._file_pieces(file), SnapshotSize(os.fstat(file.fileno()).st_size))

    async def history(self, client: Client, _: ReadHistory) -> Flow:
        await self._begin(client)
        if not self._history.history.reached:
            raise RequestError(Fault.NOT_FOUND, "there is no Object History yet")
        return self._flow(self._history_pieces())

    def _flow(self, pieces: AsyncGenerator[Any, None], head: Any = None) -> Flow:
        self._pin()
        self.open += 1
        return Flow(PieceSource(self, pieces, Taken(self.writer.room), _RAW_PIECE_BYTES), head)

    # ── Pieces ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _moment_pieces(self) -> AsyncGenerator[Still | BackupState, None]:
        running = asyncio.get_running_loop()
        begun = running.create_future()
        pause = self.writer.pause(partial(resolve, begun, None))

        def end() -> bool:
            resolve(begun, None)
            return self.writer.resume(pause)

        timer = running.call_later(BACKUP_PAUSE_SECONDS_MAX, end)
        try:
            await begun
            noted = self._noted()
            yield Still()
        finally:
            timer.cancel()
            has_lasted = end()
        if has_lasted:
            yield _state(await self._reads.in_thread(noted))

    async def _log_pieces(self, view: View, start: Position, end: Position) -> AsyncGenerator[bytes, None]:
        with closing(Cursor(start)) as cursor:
            read = partial(cursor.read_raw, view, end, _RAW_PIECE_BYTES)
            async for piece in self._paced(read):
                yield piece

    async def _file_pieces(self, file: BinaryIO) -> AsyncGenerator[bytes, None]:
        with file:
            async for piece in self._paced(partial(file.read, _RAW_PIECE_BYTES)):
                yield piece

    async def _paced(self, read: Callable[[], bytes]) -> AsyncGenerator[bytes, None]:
        """Pieces that are read like those of the Event Log: with rests while the broker is busy."""
        while data := await self._reads.in_thread(read):
            self._pin()
            yield data

    async def _history_pieces(self) -> AsyncGenerator[bytes, None]:
        process = await asyncio.to_thread(_start_copying, self._directory.history)
        assert process.stdout is not None
        try:
            while data := await asyncio.to_thread(process.stdout.read, _RAW_PIECE_BYTES):
                self._pin()
                yield data
            if await asyncio.to_thread(process.wait):
                raise HistoryError(f"{self._directory.history} cannot be copied")
        finally:
            process.kill()
            await asyncio.to_thread(_end, process, process.stdout)


def _state(noted: SourceState) -> BackupState:
    return BackupState(msgspec.to_builtins(noted))


def _start_copying(history: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "penstock.storage.history.copying", str(history)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)


def _end(process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
    process.wait()
    output.close()
