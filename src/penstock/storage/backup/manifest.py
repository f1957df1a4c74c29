"""What a backup consists of, and what it was made from.

backup.json                 the manifest: it lists every file with its size and its SHA-256
lock                        held while a backup is made
log/<offset>.log            segments, as in a data directory; the newest ends with its last batch
snapshots/<offset>.snapshot the snapshot that a start will use
history/<position>.mdb      the Object History, if there is one

With several shards, `backup.json` has what `shards.json` has in a store, and the manifests of all shards. Their files
are in `shards/0000/` and so on. There is one file that counts, so all shards are those of one moment.

A file may be longer than the manifest says: what follows was added by a backup that did not finish.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from penstock.decoding import decode_json
from penstock.errors import BackupError
from penstock.model.values import Nanos, Position
from penstock.storage.directory import Identity, write_durably
from penstock.storage.shards import Shards, shard_directory

BACKUP_FORMAT = 1
SHARDS_BACKUP_FORMAT = 2
MANIFEST = "backup.json"
_READ_BYTES = 1 << 20


class PartFacts(msgspec.Struct, frozen=True):
    """A part of the log, up to the end of the backup."""

    first: int  # The offset of its first record.
    position: Position
    created: Nanos
    bytes: int  # Of its batches, without the header of the segment.

    @property
    def end(self) -> Position:
        return self.position + self.bytes


class SnapshotState(msgspec.Struct, frozen=True):
    offset: int
    bytes: int


class SourceState(msgspec.Struct, frozen=True):
    """What there is to back up at one moment. All of it stays readable for a while."""

    log: str  # The identity of the log.
    identity: Identity
    time: Nanos
    offset: int  # Where the durable part of the log ends.
    position: Position
    parts: list[PartFacts]
    snapshot: SnapshotState | None
    history: Position | None  # How far the Object History on disk reaches; None if there is none.


class BackupFile(msgspec.Struct, frozen=True):
    path: str
    bytes: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    version: str  # Of the program that made it.
    state: SourceState
    files: list[BackupFile]

    def file(self, path: str) -> BackupFile | None:
        return next((file for file in self.files if file.path == path), None)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class _SeveralShards(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    version: str
    store: Shards
    shards: list[Manifest]


class Contents(msgspec.Struct, frozen=True):
    """What a directory has a backup of: a store with one shard, or one with several, at one moment."""

    store: Shards | None  # None: one shard.
    shards: list[Manifest]

    def folders(self, directory: Path) -> list[Path]:
        """Where the files of each shard are."""
        return folders_of(directory, self.store)

    @property
    def bytes(self) -> int:
        return sum(manifest.bytes for manifest in self.shards)


def folders_of(directory: Path, store: Shards | None) -> list[Path]:
    return [shard_directory(directory, shard).path for shard in range(store.shards)] if store else [directory]


class _Numbered(msgspec.Struct):
    format: int


def read_contents(directory: Path) -> Contents | None:
    """What the manifest of a backup lists; None if there is none."""
    try:
        data = (directory / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        number = decode_json(data, _Numbered).format
        if number == BACKUP_FORMAT:
            return Contents(None, [decode_json(data, Manifest)])
        if number == SHARDS_BACKUP_FORMAT:
            return _checked(decode_json(data, _SeveralShards))
        raise BackupError(
            f"{directory} has backup format {number}; this version reads formats {BACKUP_FORMAT} and"
            f" {SHARDS_BACKUP_FORMAT}: use the version of Penstock that made it, or a newer one"
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise BackupError(f"{directory / MANIFEST} is damaged: {error}; use another copy of the backup") from error


def _checked(found: _SeveralShards) -> Contents:
    """Raises `ValueError` for what no backup has."""
    found.store.check()
    numbers = [manifest.state.identity.shard for manifest in found.shards]
    if numbers != list(range(found.store.shards)):
        raise ValueError(f"it has the shards {numbers} of {found.store.shards}")
    return Contents(found.store, found.shards)


def contents_of(directory: Path) -> Contents:
    contents = read_contents(directory)
    if contents is None:
        raise BackupError(f"{directory} is not a backup: {MANIFEST} is missing; check the path")
    return contents


def write_contents(directory: Path, contents: Contents) -> None:
    document: object = contents.shards[0]
    if store := contents.store:
        version = contents.shards[0].version
        document = _SeveralShards(format=SHARDS_BACKUP_FORMAT, version=version, store=store, shards=contents.shards)
    write_durably(directory / MANIFEST, msgspec.json.format(msgspec.json.encode(document)) + b"\n")


class Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def digest_of(file: BinaryIO, size: int) -> Digest:
    """The SHA-256 of the next bytes of a file, or of fewer if it is shorter."""
    digest = sha256()
    while size and (data := file.read(min(size, _READ_BYTES))):
        digest.update(data)
        size -= len(data)
    return digest
