"""The data directory: one owner at a time, and an identity that stays with the data.

penstock.json        format, shard, and the key that message ids are checked with
lock                 held by the process that serves the directory
log/                 segments, named by their first offset
snapshots/           the newest two, named by their offset
history/             the Object History, made from the log; exists once an object has been published
owner, boot          only in the copy of a log that is stored elsewhere: whose copy it is, and since which boot
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from penstock.decoding import decode_json
from penstock.errors import DataDirectoryError, InUseError
from penstock.ids import ID_KEY_BYTES, MessageIds
from penstock.limits import SHARD_MAX
from penstock.storage.plain_files import make_private, misplaced

DIRECTORY_FORMAT = 1


class Ancestor(msgspec.Struct, frozen=True):
    """A log that this one continues: both are the same up to an offset."""

    log: str
    end: int
    salt: str  # Makes the identity of the log that continues it.


class Identity(msgspec.Struct, omit_defaults=True):
    format: int
    shard: int
    id_key: str  # Hexadecimal.
    ancestors: list[Ancestor] = []  # The nearest is last. The directory was restored from their backups.
    shards: int = 1  # How many the store has.

    def message_ids(self) -> MessageIds:
        """A new reader and writer of ids. Each remembers its latest ids, so users do not share one. The shards of a
        store have the same ids, because the numbers of their queues differ; their logs differ."""
        salt = self.ancestors[-1].salt if self.ancestors else ""
        return MessageIds(bytes.fromhex(self.id_key), salt=f"{salt} shard {self.shard}" if self.shard else salt)

    @property
    def lineage(self) -> list[tuple[str, int]]:
        """The logs that this one continues, each with the offset up to which both are the same."""
        return [(each.log, each.end) for each in self.ancestors]

    def successor(self, end: int) -> Identity:
        """The identity of a copy whose log is the same up to an offset: message ids stay valid, but it is another
        log, because both may go on."""
        ancestor = Ancestor(self.message_ids().log_id, end, secrets.token_hex(8))
        return msgspec.structs.replace(self, ancestors=[*self.ancestors, ancestor])

    def check(self) -> None:
        """Raises `ValueError` for values that no broker writes."""
        if not 1 <= self.shards <= SHARD_MAX + 1:
            raise ValueError(f"shards is {self.shards}, expected 1 to {SHARD_MAX + 1}")
        if not 0 <= self.shard < self.shards:
            raise ValueError(f"shard is {self.shard}, expected 0 to {self.shards - 1}")
        if not re.fullmatch(rf"[0-9a-f]{{{2 * ID_KEY_BYTES}}}", self.id_key):
            raise ValueError(f"id_key is not {2 * ID_KEY_BYTES} hexadecimal digits")


def new_identity() -> Identity:
    return Identity(DIRECTORY_FORMAT, 0, secrets.token_hex(ID_KEY_BYTES))


class DataDirectory:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.snapshots = path / "snapshots"
        self.history = path / "history"
        self.identity: Identity | None = None  # Known when it is open.
        self._lock: int | None = None
        self._identity_lock: int | None = None

    def open(self, stored: Identity | None = None) -> Identity:
        """Take the directory for this process. Create it if it does not exist. `stored`: the identity of a log that
        is stored elsewhere, so that the directory holds a copy of it."""
        self._check_path()
        try:
            for folder in (self.path, self.log, self.snapshots):
                make_private(folder)
            self._take_lock()
            identity = self._read_identity() or self._make_identity(stored)
            self._lock_identity()
            self._check_purpose(identity, stored)
            self.identity = identity
            return identity
        except OSError as error:
            raise DataDirectoryError(f"cannot use {self.path}: {error}") from error

    def read_identity(self) -> Identity:
        """Read the identity without taking the directory."""
        self._check_path()
        identity = self._read_identity()
        if identity is None:
            self._check_single()
            raise DataDirectoryError(f"{self.path} is not a Penstock data directory: penstock.json is missing")
        return identity

    def lost(self) -> str | None:
        """Why this process may no longer use the directory, for a message; None if it may.

        This opens nothing, because closing the lock file again would release its lock.
        """
        assert self._lock is not None
        lock = self.path / "lock"
        if _is_same_file(self._lock, lock):
            return None
        if not self.path.exists():
            return f"the data directory {self.path.absolute()} was removed while the broker was running"
        return f"the lock file {lock.absolute()} was removed or replaced while the broker was running"

    def close(self) -> None:
        for descriptor in (self._identity_lock, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._lock = self._identity_lock = None

    def _take_lock(self) -> None:
        self._lock = take_lock(self.path / "lock")
        if self._lock is None:
            raise in_use(self.path, self.path / "lock")

    def _check_path(self) -> None:
        for path in (self.path, *self.path.parents):
            if path.is_dir():
                break
            if path.exists():
                raise DataDirectoryError(
                    f"{path} is not a directory, so it cannot hold a broker's data; choose another path for the data"
                )
        check_files(self.path)

    def _check_single(self) -> None:
        if (self.path / "shards.json").exists():
            raise DataDirectoryError(
                f"{self.path} is a store with several shards; each is a directory in its shards/"
            )

    def _lock_identity(self) -> None:
        """A second lock, on a file that every broker needs: it also refuses one that finds the lock file removed.
        Opening and closing this file later in this process would release it."""
        self._identity_lock = _try_lock(self.path / "penstock.json")
        if self._identity_lock is None:
            raise InUseError(
                f"the data directory {self.path.absolute()} is in use by another process, though its lock file was"
                " removed. Stop that process, or choose another directory"
            )

    def _read_identity(self) -> Identity | None:
        path = self.path / "penstock.json"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            identity = decode_json(data, Identity)
            if identity.format == DIRECTORY_FORMAT:
                identity.check()
        except (msgspec.DecodeError, ValueError) as error:
            raise DataDirectoryError(
                f"{path} is damaged: {error}. Restore it from a backup: with another key, no message id that was"
                " given out is valid"
            ) from error
        if identity.format != DIRECTORY_FORMAT:
            raise DataDirectoryError(
                f"{self.path} has format {identity.format}; this version reads format {DIRECTORY_FORMAT}"
            )
        return identity

    def _check_purpose(self, identity: Identity, stored: Identity | None) -> None:
        """A copy must not be taken for a log, nor the log of one store for that of another."""
        if stored is None and (self.path / "owner").exists():
            raise DataDirectoryError(f"{self.path} is a copy of a log in a store; start the broker with its store")
        if stored is not None and identity != stored:
            raise DataDirectoryError(f"{self.path} belongs to another log than the store; choose an empty directory")
        if stored is not None and not (self.path / "owner").exists():
            write_durably(self.path / "owner", secrets.token_hex(8).encode())

    def _make_identity(self, stored: Identity | None) -> Identity:
        self._check_single()
        if any(self.log.iterdir()):
            raise DataDirectoryError(f"{self.path} has a log, but penstock.json is missing; restore it from a backup")
        identity = stored or new_identity()
        write_durably(self.path / "penstock.json", msgspec.json.encode(identity) + b"\n")
        return identity


def check_files(path: Path) -> None:
    """Raises `DataDirectoryError` if opening what stands where a file belongs could wait for ever."""
    if problem := misplaced(path):
        raise DataDirectoryError(
            f"{problem}, so nothing there is opened. Restore the file from a backup, or remove it"
        )


def take_lock(path: Path) -> int | None:
    """A lock, released by closing the descriptor; None if another process holds it. The file names the holder."""
    descriptor = _try_lock(path, os.O_CREAT)
    if descriptor is not None:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    return descriptor


def _try_lock(path: Path, flags: int = 0) -> int | None:
    # A POSIX record lock belongs to this process alone: a forked child does not get it, and the kernel releases it
    # when the process dies, however it dies.
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _is_same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one at this path. True if that cannot be found out."""
    try:
        there = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return os.path.samestat(os.fstat(descriptor), there)


def is_locked(path: Path) -> bool:
    """Whether another process holds a lock. Not to be called for one of this process: it would be released."""
    descriptor = _try_lock(path)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def lock_holder(path: Path) -> str:
    """The process that holds the lock and since when, for a message. Only to be called when the lock could not be
    taken."""
    try:
        process, taken = int(path.read_text()), datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except (OSError, ValueError):
        return "another process"  # An older version holds the lock: it writes no number.
    return f"process {process} since {taken:%Y-%m-%d %H:%M:%S} UTC"


def in_use(directory: Path, lock: Path) -> InUseError:
    return InUseError(
        f"the data directory {directory.absolute()} is in use by {lock_holder(lock)}. Stop that process, or choose"
        " another directory"
    )


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file atomically: it is there whole or not at all."""
    temporary = path.with_name(path.name + ".tmp")
    with create_private(temporary) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish_durably(temporary, path)


def create_private(path: Path) -> BinaryIO:
    """Create or empty a file that only its owner can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(path, flags, 0o600)  # A link is an error, and so is a pipe that nobody reads.
    return os.fdopen(descriptor, "wb", buffering=1 << 20)


def publish_durably(temporary: Path, path: Path) -> None:
    """Give a written and synced file its final name, durably."""
    temporary.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync the content of a file, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
