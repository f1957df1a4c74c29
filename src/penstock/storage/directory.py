"""The data directory: one owner at a time, and an identity that stays with the data.

penstock.json        format, shard, and the key that message ids are checked with
lock                 held by the process that serves the directory
log/                 segments, named by the first offset in them
snapshots/           the newest two, named by the offset they are of
history/             the Object History, made from the log; there once an object has been published
"""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.errors import DataDirectoryError, InUseError
from penstock.ids import ID_KEY_BYTES

DIRECTORY_FORMAT = 1


class Identity(msgspec.Struct):
    format: int
    shard: int
    id_key: str  # Hexadecimal.


class DataDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.snapshots = path / "snapshots"
        self.history = path / "history"
        self._lock: int | None = None

    def open(self) -> Identity:
        """Take the directory for this process; make it if it is not there."""
        self._check_path()
        try:
            for folder in (self.path, self.log, self.snapshots):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._take_lock()
            return self._read_identity() or self._make_identity()
        except OSError as error:
            raise DataDirectoryError(f"cannot use {self.path}: {error}") from error

    def read_identity(self) -> Identity:
        """Look at a directory without taking it."""
        self._check_path()
        identity = self._read_identity()
        if identity is None:
            raise DataDirectoryError(f"{self.path} is not a Penstock data directory: penstock.json is missing")
        return identity

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        self._lock = take_lock(self.path / "lock")
        if self._lock is None:
            raise InUseError(
                f"the data directory {self.path.absolute()} is in use by {lock_holder(self.path / 'lock')}."
                " Stop that process, or choose another directory"
            )

    def _check_path(self) -> None:
        for path in (self.path, *self.path.parents):
            if path.is_dir():
                return
            if path.exists():
                raise DataDirectoryError(
                    f"{path} is not a directory, so it cannot hold a broker's data; choose another path for the data"
                )

    def _read_identity(self) -> Identity | None:
        try:
            data = (self.path / "penstock.json").read_bytes()
        except FileNotFoundError:
            return None
        try:
            identity = msgspec.json.decode(data, type=Identity)
        except msgspec.DecodeError as error:
            raise DataDirectoryError(f"{self.path / 'penstock.json'} cannot be read: {error}") from error
        if identity.format != DIRECTORY_FORMAT:
            raise DataDirectoryError(
                f"{self.path} has format {identity.format}; this version reads format {DIRECTORY_FORMAT}"
            )
        return identity

    def _make_identity(self) -> Identity:
        if any(self.log.iterdir()):
            raise DataDirectoryError(f"{self.path} has a log, but penstock.json is missing")
        identity = Identity(DIRECTORY_FORMAT, 0, secrets.token_hex(ID_KEY_BYTES))
        write_durably(self.path / "penstock.json", msgspec.json.encode(identity) + b"\n")
        return identity


def take_lock(path: Path) -> int | None:
    """A lock, released by closing the descriptor; None if another process has it. The file names who has it."""
    # A POSIX record lock belongs to this process alone: it does not pass to a forked child, and the kernel lets go of
    # it when the process dies, however it dies.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def lock_holder(path: Path) -> str:
    """The process that has the lock, for a message. Call it only where the lock could not be taken."""
    try:
        return f"process {int(path.read_text())}"
    except (OSError, ValueError):
        return "another process"  # An older version has the lock: it left no number.


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file so that it is there whole, or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with create_private(temporary) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish_durably(temporary, path)


def create_private(path: Path) -> BinaryIO:
    """A new or emptied file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "wb", buffering=1 << 20)


def publish_durably(temporary: Path, path: Path) -> None:
    """Give a written and synced file its final name, durably."""
    temporary.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """The content of a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
