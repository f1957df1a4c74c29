"""Checks a backup, and makes a data directory from it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from penstock.errors import BackupError
from penstock.storage.backup.manifest import BackupFile, Contents, Digest, Manifest, contents_of, folders_of
from penstock.storage.directory import create_private, sync, write_durably
from penstock.storage.plain_files import make_private
from penstock.storage.shards import write_shards

_READ_BYTES = 1 << 20

Advance = Callable[[int], None]


def verify_backup(directory: Path, advance: Advance = lambda _: None) -> list[str]:
    """Read every byte of a backup. Returns what is wrong with it."""
    problems = []
    contents = contents_of(directory)
    for folder, manifest in zip(contents.folders(directory), contents.shards, strict=True):
        for file in manifest.files:
            try:
                _check(folder, file, lambda _: None, advance)
            except BackupError as error:
                problems.append(str(error))
    return problems


def restore_backup(directory: Path, data: Path, advance: Advance = lambda _: None) -> Contents:
    """Make a store. What is copied is checked. A restore that fails leaves nothing, and one that is cut off leaves no
    directory that starts."""
    contents = contents_of(directory)
    was_there = data.exists()
    if was_there and (not data.is_dir() or any(data.iterdir())):
        raise BackupError(f"{data} is not empty: nothing is overwritten. Choose another path, or move it away")
    try:
        _restore(contents, directory, data, advance)
    except OSError as error:
        _remove(data, was_there=was_there)
        raise BackupError(
            f"cannot restore to {data}: {error}; free some space there, or choose another path"
        ) from error
    except BackupError:
        _remove(data, was_there=was_there)
        raise
    return contents


def _restore(contents: Contents, directory: Path, data: Path, advance: Advance) -> None:
    targets = folders_of(data, contents.store)
    for folder, manifest, target in zip(contents.folders(directory), contents.shards, targets, strict=True):
        _restore_shard(folder, manifest, target, advance)
    if contents.store:
        write_shards(data, contents.store)  # It is a store now.


def _remove(data: Path, *, was_there: bool) -> None:
    """Leave the directory as it was: empty, or missing."""
    if not was_there:
        shutil.rmtree(data, ignore_errors=True)
        return
    for folder in data.iterdir():
        shutil.rmtree(folder, ignore_errors=True)


def _restore_shard(directory: Path, manifest: Manifest, data: Path, advance: Advance) -> None:
    for folder in (data, data / "log", data / "snapshots"):
        make_private(folder)
    for file in manifest.files:
        target = data / _restored_path(file)
        make_private(target.parent)
        with create_private(target) as copy:
            _check(directory, file, copy.write, advance)
            copy.flush()
            os.fsync(copy.fileno())
    for folder in (path for path in data.iterdir() if path.is_dir()):
        sync(folder)
    identity = manifest.state.identity.successor(manifest.state.offset)
    write_durably(data / "penstock.json", msgspec.json.encode(identity) + b"\n")  # It is a data directory now.


def _restored_path(file: BackupFile) -> Path:
    """Where a file belongs in a data directory. The manifest lists no others."""
    path = Path(file.path)
    return Path("history/data.mdb") if path.parent.name == "history" else path


def _check(directory: Path, file: BackupFile, write: Callable[[bytes], object], advance: Advance) -> None:
    """Read a file of a backup, and pass its bytes on. Raises `BackupError` if it is not what it was."""
    path = directory / file.path
    digest: Digest = sha256()
    left = file.bytes
    for data in _pieces(path, file.bytes):
        digest.update(data)
        write(data)
        advance(len(data))
        left -= len(data)
    if left:
        raise BackupError(f"{path} is too short: {left} of its {file.bytes} bytes are missing")
    if digest.hexdigest() != file.sha256:
        raise BackupError(f"{path} is damaged: its SHA-256 is not that of the manifest")


def _pieces(path: Path, size: int) -> Iterator[bytes]:
    """The first bytes of a file, or fewer if it is shorter."""
    try:
        with path.open("rb") as source:
            while size and (data := source.read(min(size, _READ_BYTES))):
                yield data
                size -= len(data)
    except FileNotFoundError:
        raise BackupError(f"{path} is missing") from None
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from None
