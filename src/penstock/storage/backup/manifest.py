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
from typing import Annotated, BinaryIO, Protocol

import msgspec

from penstock.decoding import decode_json
from penstock.errors import BackupError
from penstock.model.values import Position
from penstock.storage.directory import Identity, write_durably
from penstock.storage.log.segment import SEGMENT_HEADER_BYTES, segment_path
from penstock.storage.log.snapshot import snapshot_path
from penstock.storage.plain_files import misplaced
from penstock.storage.shards import Shards, shard_directory

BACKUP_FORMAT = 1
SHARDS_BACKUP_FORMAT = 2
MANIFEST = "backup.json"
_READ_BYTES = 1 << 20


_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class PartFacts(msgspec.Struct, frozen=True):
    """A part of the log, up to the end of the backup."""

    first: _Count  # The offset of its first record.
    position: _Count
    created: _Count
    bytes: _Count  # Of its batches, without the header of the segment.

    @property
    def end(self) -> Position:
        return self.position + self.bytes


class SnapshotState(msgspec.Struct, frozen=True):
    offset: _Count
    bytes: _Count


class SourceState(msgspec.Struct, frozen=True):
    """What there is to back up at one moment. All of it stays readable for a while."""

    log: str  # The identity of the log.
    identity: Identity
    time: _Count
    offset: _Count  # Where the durable part of the log ends.
    position: _Count
    parts: list[PartFacts]
    snapshot: SnapshotState | None
    history: _Count | None  # How far the Object History on disk reaches; None if there is none.


class BackupFile(msgspec.Struct, frozen=True):
    path: str
    bytes: _Count
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

    def check(self) -> None:
        """Raises `ValueError` for what no backup has: its files are those of its state, each once, and no others."""
        self.state.identity.check()
        needed, listed = _files_of(self.state), {file.path: file.bytes for file in self.files}
        if len(listed) < len(self.files):
            raise ValueError("it lists a file twice")
        for path in sorted(listed.keys() - needed.keys()):
            raise ValueError(f"it lists {path!r}")
        for path, size in needed.items():
            if path not in listed:
                raise ValueError(f"it does not list {path}")
            if size not in (None, listed[path]):
                raise ValueError(f"it has another size for {path} than for that part of the log")


def _files_of(state: SourceState) -> dict[str, int | None]:
    """The files that a backup of this state consists of, with their sizes, where these follow from it."""
    if not state.parts and state.offset:
        raise ValueError(f"it has no part of the log, which reaches offset {state.offset}")
    files: dict[str, int | None] = {
        str(segment_path(Path("log"), part.first)): SEGMENT_HEADER_BYTES + part.bytes for part in state.parts
    }
    if state.snapshot:
        files[str(snapshot_path(Path("snapshots"), state.snapshot.offset))] = None
    if state.history is not None:
        files[f"history/{state.history:020d}.mdb"] = None
    return files


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
    check_plain(directory)
    try:
        data = (directory / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        contents = decode_contents(data)
    except UnknownFormatError as error:
        raise BackupError(f"{directory} has {error}") from None
    except ValueError as error:
        raise BackupError(f"{directory / MANIFEST} is damaged: {error}; use another copy of the backup") from error
    for folder in contents.folders(directory):
        check_plain(folder)
    return contents


class UnknownFormatError(Exception):
    """The backup was made by another version."""


def decode_contents(data: bytes) -> Contents:
    """Raises `ValueError` for what no version writes, and `UnknownFormatError`."""
    number = decode_json(data, _Numbered).format
    if number == BACKUP_FORMAT:
        contents = Contents(None, [decode_json(data, Manifest)])
    elif number == SHARDS_BACKUP_FORMAT:
        contents = _checked(decode_json(data, _SeveralShards))
    else:
        raise UnknownFormatError(
            f"backup format {number}; this version reads formats {BACKUP_FORMAT} and"
            f" {SHARDS_BACKUP_FORMAT}: use the version of Penstock that made it, or a newer one"
        )
    for manifest in contents.shards:
        manifest.check()
    return contents


def _checked(found: _SeveralShards) -> Contents:
    """Raises `ValueError` for what no backup has."""
    found.store.check()
    numbers = [manifest.state.identity.shard for manifest in found.shards]
    if numbers != list(range(found.store.shards)):
        raise ValueError(f"it has the shards {numbers} of {found.store.shards}")
    for manifest in found.shards:
        _check_same_store(manifest.state.identity, found.store)
    return Contents(found.store, found.shards)


def _check_same_store(identity: Identity, store: Shards) -> None:
    """Raises `ValueError` if a shard is not one of this store."""
    if (identity.shards, identity.id_key) != (store.shards, store.id_key):
        raise ValueError(f"shard {identity.shard} is one of another store")


def check_plain(folder: Path) -> None:
    """A backup may come from anybody: it has no links, which might lead to any file of this machine."""
    if problem := misplaced(folder, links=False):
        raise BackupError(f"{problem}, so nothing there is opened; use another copy of the backup")


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
