"""The Object History on disk: an LMDB environment, made from the log and never ahead of it.

    current    the name of an object and a key → its newest version
    replaced   the position of the last of some versions → the position of each of them, and what it replaced
    facts      "reached": all versions that the log holds before this position are here; later ones may be
               "owner": the process that wrote last

Versions that were replaced are in blocks, in the order of the log: they are appended, and removed from the front when
the log gives up its oldest segments. A transaction is there whole or not at all, and each entry has a CRC-32C of its
key and its content.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from struct import Struct

import lmdb
from crc32c import crc32c

from penstock.errors import HistoryError
from penstock.limits import (
    HISTORY_MAP_BYTES,
    HISTORY_MAPPED_BYTES_MAX,
    HISTORY_TRANSACTION_KEYS,
    HISTORY_TRIMMED_MAX,
    HISTORY_WRITER_MAPPED_BYTES_MAX,
)
from penstock.model.values import Position, Version
from penstock.storage.history.versions import PACKED, ROW, Changes, first_row, replaced_at, rows_of, unpacked

_FORMAT = 2
_POSITION = Struct(">Q")
_BLOCK_ROWS = 32  # Two blocks fill a page.
_BLOCK_BYTES = _BLOCK_ROWS * ROW.size
_CHECKSUM_BYTES = 4
_RESIDUE = 0x48674BC7  # The CRC-32C of anything that ends with its own CRC-32C.
_VERSION_SIZES = range(PACKED.size + _CHECKSUM_BYTES, PACKED.size + _CHECKSUM_BYTES + 1)
_BLOCK_SIZES = range(ROW.size + _CHECKSUM_BYTES, _BLOCK_BYTES + _CHECKSUM_BYTES + 1, ROW.size)
_FACTS = Struct("<IQ")
_REACHED = b"reached"
_OWNER = b"owner"
_TOKEN_BYTES = 16
_LOADED_AT_ONCE = 100_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_LIBC = ctypes.CDLL(None, use_errno=True)
_MADV_DONTNEED = 4


class StoredVersions:
    """What was on the disk at the last refresh. For readers, and for one writer at a time."""

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
                metasync=False,  # It is whole after any crash; the end of a batch syncs it.
            )
            self._environment.reader_check()  # A process that was killed is still in the table of readers.
            self._check_size()
            self._map = _mapping(self._path / "data.mdb")
            names = (b"current", b"replaced", b"facts")
            databases = [self._environment.open_db(name, create=self._writable) for name in names]
            self._current, self._replaced, self._facts = databases
            self._look()

    def _check_size(self) -> None:
        """Reading the missing end of a truncated file would kill the process."""
        pages = self._environment.info()["last_pgno"] + 1
        expected = pages * self._environment.stat()["psize"]
        size = (self._path / "data.mdb").stat().st_size
        if size < expected:
            raise HistoryError(f"{self._path / 'data.mdb'} is truncated: it has {size} bytes, expected {expected}")

    def _look(self) -> None:
        self._view = self._environment.begin(self._current)
        self._get = self._view.get
        data = self._get(_REACHED, db=self._facts)
        if data is not None and (len(data) != _FACTS.size or _FACTS.unpack(data)[0] != _FORMAT):
            raise HistoryError(f"{self._path} has another format; this version reads format {_FORMAT}")
        self.reached: Position = _FACTS.unpack(data)[1] if data is not None else 0
        self.keys: int = self._view.stat(self._current)["entries"]

    def refresh(self) -> None:
        """See what was written since the last look."""
        with _as_history_error(self._path):
            self._view.abort()
            self._look()

    def bound_memory(self) -> None:
        """Pages of the file that were read count as memory of this process: release them when there are many. They
        stay in the system's cache."""
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

    def current(self, names: list[bytes]) -> list[bytes | None]:
        """The newest versions of keys, packed."""
        try:
            found = list(map(self._get, names))
        except lmdb.Error as error:
            raise HistoryError(f"{self._path}: {error}") from error
        return [None if data is None else _checked(name, data) for name, data in zip(names, found, strict=True)]

    def replaced(self, position: Position) -> bytes | None:
        with _as_history_error(self._path), self._view.cursor(self._replaced) as cursor:
            return replaced_at(_block_at(cursor), position) if cursor.set_range(_POSITION.pack(position)) else None

    def entries(self) -> Iterator[tuple[bytes, Version]]:
        """The newest version of every key, in the order of their names."""
        with _as_history_error(self._path), self._view.cursor(self._current) as cursor:
            for name, data in cursor:
                yield bytes(name), unpacked(_checked(name, data))

    def blocks(self) -> Iterator[bytes]:
        """The rows of all versions that were replaced, in the order of the log."""
        with _as_history_error(self._path), self._view.cursor(self._replaced) as cursor:
            for _ in cursor:
                yield _block_at(cursor)

    # ── Writing ─────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, changes: Changes) -> None:
        """Write all changes durably, unless a writer that lost its broker has written them already.

        This takes several transactions, because one keeps every page that it touches in memory. A history may have
        some of what follows `reached`: when it is replayed, it is recognised by its position. Replaced versions come
        first, so that no version is there without those before it."""
        with _as_history_error(self._path):
            if self._begin(changes):
                current = _entries(changes.each_name(), changes.newest)
                while some := list(islice(current, HISTORY_TRANSACTION_KEYS)):
                    with self._owned() as transaction, transaction.cursor(self._current) as cursor:
                        cursor.putmulti(some)
                    self.bound_memory()
                with self._owned() as transaction:
                    transaction.put(_REACHED, _FACTS.pack(_FORMAT, changes.reached), db=self._facts)
                self._environment.sync()
                self.refresh()

    def _begin(self, changes: Changes) -> bool:
        """Take the history, and write the replaced versions. False if all changes are there already. Another process
        that still writes has to stop: what it has is older."""
        with self._environment.begin(write=True) as transaction:
            data = transaction.get(_REACHED, db=self._facts)
            reached = _FACTS.unpack(data)[1] if data is not None else 0
            if reached >= changes.reached:
                return False
            if reached < changes.base:
                raise HistoryError(f"{self._path} ends at position {reached}, not at {changes.base}")
            transaction.put(_OWNER, self._token, db=self._facts)
            with transaction.cursor(self._replaced) as cursor:
                cursor.putmulti(_blocks(_taken_back(cursor, reached, changes.replaced)), append=True)
                _trim(cursor, _POSITION.pack(changes.earliest))
        return True

    @contextmanager
    def _owned(self) -> Iterator[lmdb.Transaction]:
        with self._environment.begin(write=True) as transaction:
            if transaction.get(_OWNER, db=self._facts) != self._token:
                raise HistoryError(f"{self._path} is written by another process")
            yield transaction

    def load(self, entries: Iterable[tuple[bytes, Version]]) -> None:
        """Fill an empty history with the newest versions of keys, given in the order of their names."""
        entries = iter(entries)
        with _as_history_error(self._path):
            while batch := list(islice(entries, _LOADED_AT_ONCE)):
                with (
                    self._environment.begin(self._current, write=True) as transaction,
                    transaction.cursor() as cursor,
                ):
                    versions = b"".join([PACKED.pack(*version) for _, version in batch])
                    cursor.putmulti(_entries([name for name, _ in batch], versions), append=True)
            self._environment.sync()
            self.refresh()


def _taken_back(cursor: lmdb.Cursor, reached: Position, rows: bytes) -> bytes:
    """The rows at `reached` or after it, in the order of the log: new ones, and those that an unfinished batch left
    here, which are taken out."""
    rows, left = rows[first_row(rows, reached) * ROW.size :], bytearray()
    while cursor.set_range(_POSITION.pack(reached)):
        left += _block_at(cursor)
        cursor.delete()
    return b"".join(sorted({*rows_of(left), *rows_of(rows)})) if left else rows


def _block_at(cursor: lmdb.Cursor) -> bytes:
    return _checked(bytes(cursor.key()), bytes(cursor.value()), _BLOCK_SIZES)


def _trim(cursor: lmdb.Cursor, earliest: bytes) -> None:
    if cursor.first():
        for _ in range(HISTORY_TRIMMED_MAX // _BLOCK_ROWS):
            if bytes(cursor.key()) >= earliest or not cursor.delete():
                break


def _entries(names: Sequence[bytes], versions: bytes) -> Iterator[tuple[bytes, bytes]]:
    """In the order of the names, so that few pages are touched twice."""
    for at in sorted(range(len(names)), key=names.__getitem__):
        name, version = names[at], versions[at * PACKED.size : (at + 1) * PACKED.size]
        yield name, _with_checksum(name, version)


def _blocks(rows: bytes) -> Iterator[tuple[bytes, bytes]]:
    for start in range(0, len(rows), _BLOCK_BYTES):
        block = rows[start : start + _BLOCK_BYTES]
        position = block[-ROW.size : -PACKED.size]
        yield position, _with_checksum(position, block)


def _with_checksum(key: bytes, data: bytes) -> bytes:
    return data + crc32c(key + data).to_bytes(_CHECKSUM_BYTES, "little")


def _checked(key: bytes, data: bytes, sizes: range = _VERSION_SIZES) -> bytes:
    if len(data) not in sizes or crc32c(key + data) != _RESIDUE:
        raise HistoryError("an entry of the Object History is damaged")
    return data[:-_CHECKSUM_BYTES]


def _mapping(path: Path) -> tuple[int, int]:
    """The address and the size of the mapping of a file in this process."""
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
