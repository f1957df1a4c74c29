"""The Object History on disk: an LMDB environment, made from the log and never ahead of it.

    current    hash of an object and a key → its newest version
    replaced   where a version stands in the log → the version that it replaced
    facts      "reached": all versions that the log holds before this position are in here; later ones may be
               "owner": the process that wrote last

A transaction is there whole or not at all, and each entry has a checksum of its own. Versions that were replaced
stand in the order of the log: they are appended, and leave from the front when the log gives up its oldest segments.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import lmdb
import numpy as np
from crc32c import crc32c

from penstock.errors import HistoryError
from penstock.limits import (
    HISTORY_MAP_BYTES,
    HISTORY_MAPPED_BYTES_MAX,
    HISTORY_TRANSACTION_KEYS,
    HISTORY_TRIMMED_MAX,
    HISTORY_WRITER_MAPPED_BYTES_MAX,
)
from penstock.model import Position, Version

NAME_BYTES = 16
PACKED = Struct("<16sIQIqQ")  # A version. On the disk a CRC-32C of the key and this follows.
_FORMAT = 1
_PLACE = Struct(">Q")  # So that the order of the bytes is the order of the log.
_PLACES = np.dtype(">u8")
_CHECKSUM_BYTES = 4
_RESIDUE = 0x48674BC7  # The CRC-32C of anything that ends with its own CRC-32C.
_FACTS = Struct("<IQ")
_REACHED = b"reached"
_OWNER = b"owner"
_TOKEN_BYTES = 16
_LOADED_AT_ONCE = 100_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LIBC = ctypes.CDLL(None, use_errno=True)
_MADV_DONTNEED = 4


_version = partial(tuple.__new__, Version)  # `_make`, without a second look.


def unpacked(packed: bytes) -> Version:
    return _version(PACKED.unpack(packed))


def _opened(key: bytes, data: bytes) -> bytes:
    if len(data) != PACKED.size + _CHECKSUM_BYTES or crc32c(key + data) != _RESIDUE:
        raise HistoryError("an entry of the Object History is damaged")
    return data[:-_CHECKSUM_BYTES]


def place_of(position: Position) -> bytes:
    return _PLACE.pack(position)


class Changes(NamedTuple):
    """What is written at once: it brings the history from one position of the log to another. Names, places and
    versions stand one after the other: a batch is many, and is handed from one process to another."""

    base: Position
    reached: Position
    earliest: Position  # Where the log begins: what was replaced before it goes.
    names: bytes  # Hashes of objects and keys …
    newest: bytes  # … and their newest versions.
    places: bytes  # Where versions stand, in the order of the log …
    replaced: bytes  # … and what they replaced.

    @classmethod
    def of(
        cls,
        base: Position,
        reached: Position,
        earliest: Position,
        current: dict[bytes, bytes],
        replaced: dict[Position, bytes],
    ) -> Changes:
        places = np.fromiter(replaced, dtype=_PLACES, count=len(replaced)).tobytes()
        columns = (b"".join(current), b"".join(current.values()), places, b"".join(replaced.values()))
        return cls(base, reached, earliest, *columns)


def _entries(keys: bytes, key_bytes: int, versions: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and versions as the disk has them, in the order of the keys: so that few pages are looked for twice."""
    bytes_of_keys = np.frombuffer(keys, dtype=np.uint8).reshape(-1, key_bytes)
    rows = np.hstack((bytes_of_keys, np.frombuffer(versions, dtype=np.uint8).reshape(-1, PACKED.size)))
    beginnings = np.ascontiguousarray(rows[:, : _PLACES.itemsize]).view(_PLACES)[:, 0]
    column, size = rows[np.argsort(beginnings, kind="stable")].tobytes(), rows.shape[1]
    for start in range(0, len(column), size):
        row = column[start : start + size]
        yield row[:key_bytes], row[key_bytes:] + crc32c(row).to_bytes(_CHECKSUM_BYTES, "little")


def _mapping(path: Path) -> tuple[int, int]:
    """Where a file is mapped in this process, and how much of it."""
    name = str(path.resolve())
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(name):
            start, end = line.split(" ", 1)[0].split("-")
            return int(start, 16), int(end, 16) - int(start, 16)
    raise HistoryError(f"{path} is not mapped")


@contextmanager
def _as_history_error(path: Path) -> Iterator[None]:
    try:
        yield
    except (lmdb.Error, OSError) as error:
        raise HistoryError(f"{path}: {error}") from error


class StoredVersions:
    """What is on the disk, as it was when it was last looked at anew. For readers, and for one writer at a time."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self._path = path
        self._writable = writable
        self._mapped_bytes_max = HISTORY_WRITER_MAPPED_BYTES_MAX if writable else HISTORY_MAPPED_BYTES_MAX
        self._token = os.urandom(_TOKEN_BYTES)
        self._statm = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        self._open()

    def _open(self) -> None:
        self._unmapped = self._mapped_bytes()
        with _as_history_error(self._path):
            self._environment = lmdb.open(
                str(self._path),
                map_size=HISTORY_MAP_BYTES,
                readonly=not self._writable,
                create=self._writable,
                mode=0o600,
                max_dbs=3,
                readahead=False,
            )
            self._environment.reader_check()  # A process that was killed has left its name in the table of readers.
            self._check_size()
            self._map = _mapping(self._path / "data.mdb")
            names = (b"current", b"replaced", b"facts")
            databases = [self._environment.open_db(name, create=self._writable) for name in names]
            self._current, self._replaced, self._facts = databases
            self._look()

    def _check_size(self) -> None:
        """A file that was cut off would end the process when its missing end is read."""
        pages = self._environment.info()["last_pgno"] + 1
        expected = pages * self._environment.stat()["psize"]
        size = (self._path / "data.mdb").stat().st_size
        if size < expected:
            raise HistoryError(f"{self._path / 'data.mdb'} has {size} bytes of {expected}")

    def _look(self) -> None:
        self._view = self._environment.begin(self._current)
        self._get = self._view.get
        data = self._get(_REACHED, db=self._facts)
        if data is not None and (len(data) != _FACTS.size or _FACTS.unpack(data)[0] != _FORMAT):
            raise HistoryError(f"{self._path} has a format that this version does not read")
        self.reached: Position = _FACTS.unpack(data)[1] if data is not None else 0
        self.keys: int = self._view.stat(self._current)["entries"]

    def refresh(self) -> None:
        """See what was written since."""
        with _as_history_error(self._path):
            self._view.abort()
            self._look()

    def bound_memory(self) -> None:
        """Pages of the file that were looked at count as this process's memory: let go of them when they are many.
        They stay in the system's cache."""
        if self._mapped_bytes() - self._unmapped > self._mapped_bytes_max:
            start, size = self._map
            if _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), _MADV_DONTNEED):
                raise HistoryError(f"{self._path}: madvise: {os.strerror(ctypes.get_errno())}")

    def _mapped_bytes(self) -> int:
        return int(os.pread(self._statm, 128, 0).split()[2]) * _PAGE_BYTES

    def close(self) -> None:
        self._environment.close()
        os.close(self._statm)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def current(self, name: bytes) -> bytes | None:
        """Packed, as all that is looked up."""
        try:
            data = self._get(name)
        except lmdb.Error as error:
            raise HistoryError(f"{self._path}: {error}") from error
        return None if data is None else _opened(name, data)

    def replaced(self, position: Position) -> bytes | None:
        place = place_of(position)
        with _as_history_error(self._path):
            data = self._get(place, db=self._replaced)
        return None if data is None else _opened(place, data)

    def entries(self) -> Iterator[tuple[bytes, Version]]:
        """The newest version of every key, by the hash of object and key."""
        with _as_history_error(self._path), self._view.cursor(self._current) as cursor:
            for name, data in cursor:
                yield bytes(name), unpacked(_opened(name, data))

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, changes: Changes) -> None:
        """All of it, durably, unless it is there already: a writer that lost its broker may have been first.

        It takes several transactions, since one keeps every page that it touches in memory. A history that has some
        of what follows `reached` is as good as one that has none of it: what is replayed is recognised by its
        position. What was replaced comes first, so that no version is there without its past."""
        with _as_history_error(self._path):
            if self._begin(changes):
                current = _entries(changes.names, NAME_BYTES, changes.newest)
                while some := list(islice(current, HISTORY_TRANSACTION_KEYS)):
                    with self._owned() as transaction, transaction.cursor(self._current) as cursor:
                        cursor.putmulti(some)
                    self.bound_memory()
                with self._owned() as transaction:
                    transaction.put(_REACHED, _FACTS.pack(_FORMAT, changes.reached), db=self._facts)
                self.refresh()

    def _begin(self, changes: Changes) -> bool:
        """Is there anything to do? Then the history is ours, and another process that still writes it has to stop:
        what it writes is older."""
        with self._environment.begin(write=True) as transaction:
            data = transaction.get(_REACHED, db=self._facts)
            reached = _FACTS.unpack(data)[1] if data is not None else 0
            if reached >= changes.reached:
                return False
            if reached < changes.base:
                raise HistoryError(f"{self._path} ends at position {reached}, not at {changes.base}")
            transaction.put(_OWNER, self._token, db=self._facts)
            with transaction.cursor(self._replaced) as cursor:
                last = bytes(cursor.key()) if cursor.last() else b""
                replaced = _entries(changes.places, _PLACE.size, changes.replaced)
                cursor.putmulti(replaced, append=last < changes.places[: _PLACE.size])
                _trim(cursor, place_of(changes.earliest))
        return True

    @contextmanager
    def _owned(self) -> Iterator[lmdb.Transaction]:
        with self._environment.begin(write=True) as transaction:
            if transaction.get(_OWNER, db=self._facts) != self._token:
                raise HistoryError(f"{self._path} is written by another process")
            yield transaction

    def load(self, entries: Iterable[tuple[bytes, Version]]) -> None:
        """Fill an empty history with the newest versions of keys, which come in the order of their names."""
        entries = iter(entries)
        with _as_history_error(self._path):
            while batch := list(islice(entries, _LOADED_AT_ONCE)):
                with (
                    self._environment.begin(self._current, write=True) as transaction,
                    transaction.cursor() as cursor,
                ):
                    names = b"".join([name for name, _ in batch])
                    versions = b"".join([PACKED.pack(*version) for _, version in batch])
                    cursor.putmulti(_entries(names, NAME_BYTES, versions), append=True)
            self.refresh()


def _trim(cursor: lmdb.Cursor, earliest: bytes) -> None:
    if cursor.first():
        for _ in range(HISTORY_TRIMMED_MAX):
            if bytes(cursor.key()) >= earliest or not cursor.delete():
                break
