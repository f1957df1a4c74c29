"""Makes a backup, or continues the one that a directory holds: only what is new is copied.

The log only grows. So if the last bytes of the log in the backup are the same in the source, everything before them
is the same too, and what the backup has of it is not read again. Nothing that the old manifest lists is changed or
removed before the new one is durable: a backup that is cut off leaves the earlier one as it was.

All shards of a store are copied up to where their logs ended at one moment, and one manifest lists the files of all.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock import __version__
from penstock.errors import BackupError, InUseError
from penstock.storage.backup.manifest import (
    BACKUP_FORMAT,
    MANIFEST,
    BackupFile,
    Contents,
    Digest,
    Manifest,
    PartFacts,
    SourceState,
    check_plain,
    digest_of,
    folders_of,
    read_contents,
    write_contents,
)
from penstock.storage.backup.source import Source, StoreSource
from penstock.storage.directory import create_private, sync, take_lock
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, Segment, segment_path
from penstock.storage.log.snapshot import snapshot_path
from penstock.storage.plain_files import make_private

_COMPARED_BYTES = 64 << 10
_FOLDERS = ("log", "snapshots", "history")
_OURS = {MANIFEST, MANIFEST + ".tmp", "lock", "shards", *_FOLDERS}


class Progress(NamedTuple):
    """How a caller follows a backup: the bytes that are to be copied, as soon as they are known, and those copied."""

    expect: Callable[[int], None] = lambda _: None
    advance: Callable[[int], None] = lambda _: None


class Made(NamedTuple):
    contents: Contents
    copied_bytes: int
    reused_bytes: int


def make_backup(
    directory: Path,
    source: StoreSource,
    progress: Progress = Progress(),  # noqa: B008 - Immutable.
) -> Made:
    """Bring the backup in a directory up to date. Creates the directory if it does not exist."""
    _prepare(directory)
    check_plain(directory)
    lock = take_lock(directory / "lock")
    if lock is None:
        raise InUseError(f"another process backs up to {directory}; wait for it, or choose another directory")
    try:
        return _make(directory, source, progress)
    except OSError as error:
        raise _failure(directory, error) from error
    finally:
        os.close(lock)


def _make(directory: Path, source: StoreSource, progress: Progress) -> Made:
    store, old = source.store, read_contents(directory)
    if old and (old.store is None, len(old.shards)) != (store is None, len(source.shards)):
        count = f"{len(old.shards)} shards" if old.store else "one shard"
        raise BackupError(f"{directory} is a backup of a store with {count}; choose another directory")
    folders, manifests = folders_of(directory, store), old.shards if old else [None] * len(source.shards)
    makers = [_Maker(*each, progress.advance) for each in zip(folders, source.shards, manifests, strict=True)]
    for maker, state in zip(makers, source.states(), strict=True):
        maker.begin(state)
    plans = [maker.plan(state) for maker, state in zip(makers, source.states(), strict=True)]
    progress.expect(sum(maker.copied for maker in makers) + sum(plan.bytes for plan in plans))
    contents = Contents(store, [maker.finish(plan) for maker, plan in zip(makers, plans, strict=True)])
    for folder in (directory / "shards", directory) if store else ():
        sync(folder)
    write_contents(directory, contents)
    for maker in makers:
        maker.remove_unneeded()
    copied = sum(maker.copied for maker in makers)
    return Made(contents, copied, contents.bytes - copied)


def _prepare(directory: Path) -> None:
    try:
        make_private(directory)
        found = {path.name for path in directory.iterdir()}
        if "penstock.json" in found or (found - _OURS and MANIFEST not in found):
            raise BackupError(f"{directory} is not empty and not a backup; choose an empty directory")
    except OSError as error:
        raise _failure(directory, error) from error


def _failure(directory: Path, error: OSError) -> BackupError:
    earlier = "the earlier backup there is unchanged" if (directory / MANIFEST).exists() else "no backup was made"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(directory).free >> 20
        return BackupError(
            f"the disk of {directory} is full ({free} MiB are free); {earlier}. Free some space and run it again"
        )
    return BackupError(f"cannot write the backup: {error}; {earlier}")


class _Plan(NamedTuple):
    """What the backup will have of a shard, and how many bytes it has of each part of the log."""

    state: SourceState
    known: list[int]

    @property
    def bytes(self) -> int:
        return sum(part.bytes - have for part, have in zip(self.state.parts, self.known, strict=True))


class _Maker:
    """Copies one shard."""

    _begun: SourceState

    def __init__(self, directory: Path, source: Source, old: Manifest | None, advance: Callable[[int], None]) -> None:
        self._directory = directory
        self._source = source
        self._advance = advance
        self._old = old
        self._files: list[BackupFile] = []
        self.copied = 0

    def begin(self, begun: SourceState) -> None:
        """Copy everything but the log."""
        self._check_log(begun)
        for name in _FOLDERS:
            make_private(self._directory / name)
        self._begun = begun
        if begun.snapshot:
            offset = begun.snapshot.offset
            self._copy_whole(str(snapshot_path(Path("snapshots"), offset)), lambda: self._source.snapshot(offset))
        if begun.history is not None:
            self._copy_whole(f"history/{begun.history:020d}.mdb", self._source.history)

    def plan(self, ended: SourceState) -> _Plan:
        """The log is copied up to where it ends now."""
        self._check_log(ended)
        known = {part.first: part for part in self._known_parts(ended)}
        return _Plan(ended, [_known_bytes(known.get(part.first), part) for part in ended.parts])

    def finish(self, plan: _Plan) -> Manifest:
        for part, have in zip(plan.state.parts, plan.known, strict=True):
            self._copy_part(part, have, plan.state.identity.shard)
        for name in _FOLDERS:
            sync(self._directory / name)
        sync(self._directory)
        state = msgspec.structs.replace(plan.state, snapshot=self._begun.snapshot, history=self._begun.history)
        return Manifest(format=BACKUP_FORMAT, version=__version__, state=state, files=self._files)

    def _check_log(self, state: SourceState) -> None:
        if self._old and self._old.state.log != state.log:
            raise BackupError(
                f"{self._directory} is a backup of another log ({self._old.state.log}, not {state.log});"
                " choose another directory. A restored broker has a new log"
            )

    # ── Files that are copied as a whole ────────────────────────────────────────────────────────────────────

    def _copy_whole(self, path: str, read: Callable[[], Iterable[bytes]]) -> None:
        """Copy a file that never changes under this name, unless the backup has it."""
        known = self._old.file(path) if self._old else None
        if known and _size(self._directory / path) >= known.bytes:
            self._files.append(known)
            return
        digest: Digest = sha256()
        size = 0
        with create_private(self._directory / path) as file:
            for data in read():
                file.write(data)
                digest.update(data)
                size += len(data)
                self._count(len(data))
            file.flush()
            os.fsync(file.fileno())
        self._files.append(BackupFile(path, size, digest.hexdigest()))

    def _count(self, size: int) -> None:
        self.copied += size
        self._advance(size)

    # ── The log ─────────────────────────────────────────────────────────────────────────────────────────────

    def _known_parts(self, state: SourceState) -> list[PartFacts]:
        """The parts in the backup that need not be copied again."""
        old = self._old.state if self._old else None
        if old is None or not old.parts:
            return []
        if not self._continues(old.parts[-1], state):
            raise BackupError(
                f"{self._directory} is a backup of another log: it reaches offset {old.offset}, and its end is not"
                " part of this log. Two brokers have used copies of one data directory; choose another directory"
            )
        return old.parts

    def _continues(self, part: PartFacts, state: SourceState) -> bool:
        """Whether the source has the last bytes of the log in the backup, or has removed them since."""
        now = next((each for each in state.parts if each.first == part.first), None)
        if now is None:
            return state.position >= part.end
        if now.end < part.end:
            return False
        start = max(part.position, part.end - _COMPARED_BYTES)
        with self._segment(part).open("rb") as file:
            file.seek(SEGMENT_HEADER_BYTES + start - part.position)
            mine = file.read(part.end - start)
        return mine == b"".join(self._source.log(start, part.end))

    def _copy_part(self, part: PartFacts, have: int, shard: int) -> None:
        """Copy what the backup lacks of a part."""
        path = self._segment(part)
        name = str(path.relative_to(self._directory))
        known = self._old.file(name) if self._old and have else None
        if known and have == part.bytes and _size(path) >= known.bytes:
            self._files.append(known)
            return
        digest = self._resumed(path, known) if known else None
        header = Segment(path, shard, part.first, part.position, part.created).header()
        if digest is None:
            create_private(path).close()
            digest, have = sha256(header), 0
        with path.open("r+b") as file:
            file.truncate(SEGMENT_HEADER_BYTES + have)
            file.write(header)
            file.seek(0, os.SEEK_END)
            for data in self._source.log(part.position + have, part.end):
                file.write(data)
                digest.update(data)
                have += len(data)
                self._count(len(data))
            file.flush()
            os.fsync(file.fileno())
        if have != part.bytes:
            raise BackupError(f"{path}: {have} bytes of {part.bytes} arrived; run the backup again")
        self._files.append(BackupFile(name, SEGMENT_HEADER_BYTES + part.bytes, digest.hexdigest()))

    def _resumed(self, path: Path, known: BackupFile) -> Digest | None:
        """The digest of what the backup has of a part; None if that is damaged."""
        try:
            with path.open("rb") as file:
                digest = digest_of(file, known.bytes)
        except FileNotFoundError:
            return None
        return digest if digest.hexdigest() == known.sha256 else None

    def _segment(self, part: PartFacts) -> Path:
        return segment_path(self._directory / "log", part.first)

    # ── The end ─────────────────────────────────────────────────────────────────────────────────────────────

    def remove_unneeded(self) -> None:
        needed = {file.path for file in self._files}
        for name in _FOLDERS:
            for path in (self._directory / name).iterdir():
                if str(path.relative_to(self._directory)) not in needed:
                    path.unlink()


def _known_bytes(known: PartFacts | None, part: PartFacts) -> int:
    """How much of a part the backup has."""
    same = known and (known.position, known.created) == (part.position, part.created)
    return min(known.bytes, part.bytes) if known and same else 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1
