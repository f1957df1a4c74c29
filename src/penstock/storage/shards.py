"""A store with several shards: a data directory for each, with one key for the message ids of all.

shards.json          how many shards, the key, and which queues are in another shard than that of their name
shards/0000/         the data directory of a shard
"""

from __future__ import annotations

import secrets
from pathlib import Path

import msgspec

from penstock.decoding import decode_json
from penstock.errors import DataDirectoryError
from penstock.ids import ID_KEY_BYTES
from penstock.limits import SHARD_MAX
from penstock.storage.directory import DIRECTORY_FORMAT, DataDirectory, Identity, check_files, write_durably
from penstock.storage.plain_files import make_private

SHARDS_FORMAT = 1


class Shards(msgspec.Struct, frozen=True):
    """What `shards.json` holds. The number of shards stays."""

    format: int
    shards: int
    id_key: str  # Hexadecimal.
    elsewhere: dict[str, int] = {}

    def check(self) -> None:
        """Raises `ValueError` for values that no broker writes."""
        if not 1 <= self.shards <= SHARD_MAX + 1:
            raise ValueError(f"shards is {self.shards}, expected 1 to {SHARD_MAX + 1}")
        for shard in range(self.shards):
            self.identity(shard).check()
        if not all(0 <= shard < self.shards for shard in self.elsewhere.values()):
            raise ValueError(f"elsewhere names a shard that is not one of {self.shards}")

    def identity(self, shard: int) -> Identity:
        return Identity(DIRECTORY_FORMAT, shard, self.id_key, shards=self.shards)


def open_shards(path: Path, shards: int) -> Shards:
    """The store in this directory, which is made if there is none. Nobody may make it at the same time."""
    if (path / "owner").exists():
        raise DataDirectoryError(f"{path} is a copy of a log in a store; start the broker with its store")
    if (path / "penstock.json").exists():
        raise DataDirectoryError(
            f"{path} is a data directory with one shard. Cut it into {shards} with `penstock reshard`,"
            " or choose another directory"
        )
    try:
        found = read_shards(path) or _make(path, shards)
        if found.shards != shards:
            raise DataDirectoryError(f"{path} has {found.shards} shards, not {shards}; their number cannot change")
        for shard in range(shards):
            _prepare(shard_directory(path, shard), found.identity(shard))
    except OSError as error:
        raise DataDirectoryError(f"cannot use {path}: {error}") from error
    return found


def shard_directory(path: Path, shard: int) -> DataDirectory:
    return DataDirectory(path / "shards" / f"{shard:04}")


def read_shards(path: Path) -> Shards | None:
    """The store in this directory; None if there is none with several shards."""
    check_files(path)
    try:
        data = (path / "shards.json").read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = decode_json(data, Shards)
        if found.format == SHARDS_FORMAT:
            found.check()
    except (msgspec.DecodeError, ValueError) as error:
        raise DataDirectoryError(f"{path / 'shards.json'} is damaged: {error}. Restore it from a backup") from error
    if found.format != SHARDS_FORMAT:
        raise DataDirectoryError(f"{path} has format {found.format}; this version reads format {SHARDS_FORMAT}")
    return found


def _make(path: Path, shards: int) -> Shards:
    if not 1 <= shards <= SHARD_MAX + 1:
        raise DataDirectoryError(f"a store has 1 to {SHARD_MAX + 1} shards, not {shards}")
    if (path / "shards").exists():
        raise DataDirectoryError(f"{path} has shards, but shards.json is missing; restore it from a backup")
    made = Shards(SHARDS_FORMAT, shards, secrets.token_hex(ID_KEY_BYTES))
    make_private(path)
    write_shards(path, made)
    return made


def write_shards(path: Path, shards: Shards) -> None:
    """Make a directory a store with several shards, or change what its file holds."""
    write_durably(path / "shards.json", msgspec.json.encode(shards) + b"\n")


def _prepare(directory: DataDirectory, identity: Identity) -> None:
    """Give a new shard its identity. One that has a log and lost its identity is left alone: it does not start."""
    if (directory.path / "penstock.json").exists():
        check_shard(directory, identity)
    elif not directory.log.exists():
        make_private(directory.path)
        write_durably(directory.path / "penstock.json", msgspec.json.encode(identity) + b"\n")


def check_shard(directory: DataDirectory, identity: Identity) -> None:
    """A shard that was copied from elsewhere would have other queues under the same numbers."""
    found = directory.read_identity()
    if (found.shard, found.shards, found.id_key) != (identity.shard, identity.shards, identity.id_key):
        raise DataDirectoryError(
            f"{directory.path} is shard {found.shard} of {found.shards}, of this or another store; restore shard"
            f" {identity.shard} of {identity.shards} of this store there"
        )
