"""The Object History on disk: an LMDB environment, made from the log and never ahead of it.

    current    hash of an object and a key → its newest version
    replaced   where a version stands in the log → the version that it replaced
    facts      "reached": all versions that the log holds before this position are in here

A transaction is there whole or not at all, and each entry has a checksum of its own. Versions that were replaced
stand in the order of the log: they are appended, and leave from the front when the log gives up its oldest segments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import lmdb
from crc32c import crc32c

from penstock.errors import HistoryError
from penstock.limits import HISTORY_MAP_BYTES, HISTORY_MAPPED_BYTES_MAX, HISTORY_TRIMMED_MAX
from penstock.model import Position, Version

NAME_BYTES = 16
_FORMAT = 1
_VERSION = Struct("<16sIQIqQ")  # A CRC-32C of the key and this follows.
_ENTRY_BYTES = _VERSION.size + 4
_PLACE = Struct(">Q")  # So that the order of the bytes is the order of the log.
_CURRENT_BYTES = NAME_BYTES + _ENTRY_BYTES
_REPLACED_BYTES = _PLACE.size + _ENTRY_BYTES
_FACTS = Struct("<IQ")
_REACHED = b"reached"
_BATCH = Struct("<QQQII")
_LOADED_AT_ONCE = 100_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def encode_version(key: bytes, version: Version) -> bytes:
    data = _VERSION.pack(*version)
    return data + crc32c(data, crc32c(key)).to_bytes(4, "little")


def decode_version(key: bytes, data: bytes) -> Version:
    version = data[:-4]
    if len(data) != _ENTRY_BYTES or crc32c(version, crc32c(key)) != int.from_bytes(data[-4:], "little"):
        raise HistoryError("an entry of the Object History is damaged")
    return Version(*_VERSION.unpack(version))


def place_of(position: Position) -> bytes:
    return _PLACE.pack(position)


class Changes(NamedTuple):
    """What one transaction writes: it brings the history from one position of the log to another."""

    base: Position
    reached: Position
    earliest: Position  # Where the log begins: what was replaced before it goes.
    current: dict[bytes, bytes]
    replaced: dict[bytes, bytes]

    def encode(self) -> bytes:
        head = _BATCH.pack(self.base, self.reached, self.earliest, len(self.current), len(self.replaced))
        entries = chain(chain.from_iterable(self.current.items()), chain.from_iterable(self.replaced.items()))
        return b"".join((head, *entries))

    @classmethod
    def decode(cls, data: bytes) -> Changes:
        base, reached, earliest, current, replaced = _BATCH.unpack_from(data)
        middle = _BATCH.size + current * _CURRENT_BYTES
        end = middle + replaced * _REPLACED_BYTES
        assert len(data) == end
        return cls(
            *(base, reached, earliest),
            {
                data[at : at + NAME_BYTES]: data[at + NAME_BYTES : at + _CURRENT_BYTES]
                for at in range(_BATCH.size, middle, _CURRENT_BYTES)
            },
            {
                data[at : at + _PLACE.size]: data[at + _PLACE.size : at + _REPLACED_BYTES]
                for at in range(middle, end, _REPLACED_BYTES)
            },
        )


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
        """Pages of the file that were looked at count as this process's memory: drop them when they are many."""
        if self._mapped_bytes() - self._unmapped > HISTORY_MAPPED_BYTES_MAX:
            self._environment.close()
            self._open()

    def _mapped_bytes(self) -> int:
        return int(os.pread(self._statm, 128, 0).split()[2]) * _PAGE_BYTES

    def close(self) -> None:
        self._environment.close()
        os.close(self._statm)

    # ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────

    def current(self, name: bytes) -> bytes | None:
        try:
            return self._get(name)
        except lmdb.Error as error:
            raise HistoryError(f"{self._path}: {error}") from error

    def version(self, name: bytes) -> Version | None:
        data = self.current(name)
        return None if data is None else decode_version(name, data)

    def replaced(self, place: bytes) -> bytes | None:
        with _as_history_error(self._path):
            return self._get(place, db=self._replaced)

    def entries(self) -> Iterator[tuple[bytes, Version]]:
        """The newest version of every key, by the hash of object and key."""
        with _as_history_error(self._path), self._view.cursor(self._current) as cursor:
            for name, data in cursor:
                yield bytes(name), decode_version(name, data)

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, changes: Changes) -> None:
        """All of it, durably, unless it is there already: a writer that lost its broker may have been first."""
        with _as_history_error(self._path):
            with self._environment.begin(write=True) as transaction:
                data = transaction.get(_REACHED, db=self._facts)
                reached = _FACTS.unpack(data)[1] if data is not None else 0
                if reached >= changes.reached:
                    return
                if reached < changes.base:
                    raise HistoryError(f"{self._path} ends at position {reached}, not at {changes.base}")
                self._write(transaction, changes)
            self.refresh()

    def _write(self, transaction: lmdb.Transaction, changes: Changes) -> None:
        with transaction.cursor(self._current) as cursor:
            cursor.putmulti(sorted(changes.current.items()))
        with transaction.cursor(self._replaced) as cursor:
            replaced = sorted(changes.replaced.items())
            in_order = not replaced or not cursor.last() or bytes(cursor.key()) < replaced[0][0]
            cursor.putmulti(replaced, append=in_order)
            _trim(cursor, place_of(changes.earliest))
        transaction.put(_REACHED, _FACTS.pack(_FORMAT, changes.reached), db=self._facts)

    def load(self, entries: Iterable[tuple[bytes, Version]]) -> None:
        """Fill an empty history with the newest versions of keys, which come in the order of their names."""
        entries = iter(entries)
        with _as_history_error(self._path):
            while batch := list(islice(entries, _LOADED_AT_ONCE)):
                with (
                    self._environment.begin(self._current, write=True) as transaction,
                    transaction.cursor() as cursor,
                ):
                    loaded = [(name, encode_version(name, version)) for name, version in batch]
                    cursor.putmulti(loaded, append=True)
            self.refresh()


def _trim(cursor: lmdb.Cursor, earliest: bytes) -> None:
    if cursor.first():
        for _ in range(HISTORY_TRIMMED_MAX):
            if bytes(cursor.key()) >= earliest or not cursor.delete():
                break
