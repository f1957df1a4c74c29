"""Versions as bytes: how they are packed, and those that are not on the disk yet.

A name is the object, a line feed and the key, if that is not too long. So the keys of an object are together on disk,
and similar keys, which are often used one after the other, are next to each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple

from penstock.model.values import Position, Version
from penstock.remembering import remembered

DIGEST_BYTES = 16
PACKED = Struct("<16sIQIqQ")  # A version: its fields in their order.
ROW = Struct(f">Q{PACKED.size}s")  # A position, and what was replaced there; sorted bytes are in log order.
_NAME_BYTES_MAX = 64  # Longer names are shortened.
_BEGINNING_BYTES = 40
_HASH_BYTES = 32

_version = partial(tuple.__new__, Version)  # `_make`, without its check.


def unpacked(packed: bytes) -> Version:
    return _version(PACKED.unpack(packed))


def name_of(about: str, key: bytes) -> bytes:
    return names_of(about, (key,))[0]


def names_of(about: str, keys: Sequence[bytes]) -> list[bytes]:
    """The names of some keys of an object. No object has a line feed in it, so no two names are the same."""
    begun = _begun(about)
    room = _NAME_BYTES_MAX - len(begun)
    return [begun + key if len(key) <= room else _shortened(begun + key) for key in keys]


@remembered(1024)
def _begun(about: str) -> bytes:
    return about.encode() + b"\n"


def _shortened(name: bytes) -> bytes:
    """The beginning of a name, which keeps it next to similar ones, and a hash: longer than any name that is not
    shortened."""
    return name[:_BEGINNING_BYTES] + blake2b(name, digest_size=_HASH_BYTES).digest()


class Unwritten:
    """Versions that were noted, and what they replaced. There are many: so they are bytes, one after the other, as
    they are written to the disk, with no object for each."""

    def __init__(self) -> None:
        self.starts: dict[bytes, int] = {}  # Where versions begin in `newest`, by name.
        self.newest = bytearray()
        self.replaced = bytearray()  # Rows, in the order of the log.

    def newest_of(self, name: bytes) -> bytes | None:
        start = self.starts.get(name)
        return None if start is None else bytes(self.newest[start : start + PACKED.size])

    def replaced_by(self, position: Position) -> bytes | None:
        return replaced_at(self.replaced, position)

    def put(self, name: bytes, packed: bytes) -> None:
        start = self.starts.get(name)
        if start is None:
            self.starts[name] = len(self.newest)
            self.newest += packed
        else:
            self.newest[start : start + PACKED.size] = packed

    def put_new(self, names: Sequence[bytes], packed: bytes) -> None:
        """Add versions of keys that have none here yet."""
        start = len(self.newest)
        self.starts.update(zip(names, range(start, start + len(packed), PACKED.size), strict=True))
        self.newest += packed

    def replace(self, position: Position, packed: bytes) -> None:
        self.replaced += ROW.pack(position, packed)

    @property
    def count(self) -> int:
        """The number of keys, or of versions that were replaced, whichever is larger."""
        return max(len(self.starts), len(self.replaced) // ROW.size)


class Changes(NamedTuple):
    """What is written at once: it brings the history from one position of the log to another. Versions are bytes, one
    after the other, because there are many, and they go from one process to another."""

    base: Position
    reached: Position
    earliest: Position  # Where the log begins: versions replaced before it are removed.
    names: bytes  # One after the other.
    sizes: bytes  # The length of each name.
    newest: bytes  # The newest version of each.
    replaced: bytes  # Rows, in the order of the log.

    @classmethod
    def of(cls, base: Position, reached: Position, earliest: Position, noted: Unwritten) -> Changes:
        names = b"".join(noted.starts), bytes(map(len, noted.starts))
        return cls(base, reached, earliest, *names, bytes(noted.newest), bytes(noted.replaced))

    def each_name(self) -> list[bytes]:
        return [self.names[start:stop] for start, stop in pairwise(accumulate(self.sizes, initial=0))]


def rows_of(rows: bytes | bytearray) -> Iterator[bytes]:
    return (bytes(rows[start : start + ROW.size]) for start in range(0, len(rows), ROW.size))


def first_row(rows: bytes | bytearray, position: Position) -> int:
    """The index of the first row at or after a position."""
    return bisect_left(range(len(rows) // ROW.size), position, key=lambda at: _row(rows, at)[0])


def replaced_at(rows: bytes | bytearray, position: Position) -> bytes | None:
    """The version that was replaced at a position, packed."""
    at = first_row(rows, position)
    return _row(rows, at)[1] if at * ROW.size < len(rows) and _row(rows, at)[0] == position else None


def _row(rows: bytes | bytearray, at: int) -> tuple[Position, bytes]:
    return ROW.unpack_from(rows, at * ROW.size)
