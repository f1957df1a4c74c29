"""The Object History on disk: an LMDB environment, made from the log and never ahead of it.

    current    the name of an object and a key → its newest version
    replaced   where the last of some versions stands in the log → where each of them stands, and what it replaced
    facts      "reached": all versions that the log holds before this position are in here; later ones may be
               "owner": the process that wrote last

A name is the object, a line feed and the key, if that is not too long: so the keys of an object stand together, and
next to each other those that are alike, which are often used one after the other. Versions that were replaced stand
in blocks, in the order of the log: they are appended, and leave from the front when the log gives up its oldest
segments. A transaction is there whole or not at all, and each entry has a checksum of its own.
"""

from __future__ import annotations

import ctypes
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from itertools import accumulate, islice, pairwise
from pathlib import Path
from struct import Struct
from typing import NamedTuple

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

NAME_BYTES_MAX = 64  # Of one that is not shortened.
DIGEST_BYTES = 16
PACKED = Struct("<16sIQIqQ")  # A version. On the disk a CRC-32C of the key and this follows.
_FORMAT = 2
_BEGINNING_BYTES = 40
_HASH_BYTES = 32
_PLACE = Struct(">Q")  # So that the order of the bytes is the order of the log.
_ROW = Struct(f">Q{PACKED.size}s")  # A place, and the version that was replaced there.
_BLOCK_ROWS = 32  # Two blocks fill a page.
_BLOCK_BYTES = _BLOCK_ROWS * _ROW.size
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


_VERSION_SIZES = range(PACKED.size + _CHECKSUM_BYTES, PACKED.size + _CHECKSUM_BYTES + 1)
_BLOCK_SIZES = range(_ROW.size + _CHECKSUM_BYTES, _BLOCK_BYTES + _CHECKSUM_BYTES + 1, _ROW.size)


def _opened(key: bytes, data: bytes, sizes: range = _VERSION_SIZES) -> bytes:
    if len(data) not in sizes or crc32c(key + data) != _RESIDUE:
        raise HistoryError("an entry of the Object History is damaged")
    return data[:-_CHECKSUM_BYTES]


def place_of(position: Position) -> bytes:
    return _PLACE.pack(position)


def shortened(name: bytes) -> bytes:
    """Of a name that is too long: its beginning, for its neighbours' sake, and a hash. What is not too long has fewer
    bytes."""
    return name[:_BEGINNING_BYTES] + blake2b(name, digest_size=_HASH_BYTES).digest()


class Unwritten:
    """Versions that were noted, and what they replaced. They are many: so they stand one after the other, as the
    process that writes them wants them, with no object for each."""

    def __init__(self) -> None:
        self.starts: dict[bytes, int] = {}  # Where versions begin in `newest`, by name.
        self.newest = bytearray()
        self.replaced = bytearray()  # Rows, in the order of the log.

    def newest_of(self, name: bytes) -> bytes | None:
        start = self.starts.get(name)
        return None if start is None else bytes(self.newest[start : start + PACKED.size])

    def replaced_by(self, position: Position) -> bytes | None:
        return _found(self.replaced, position)

    def put(self, name: bytes, packed: bytes) -> None:
        start = self.starts.get(name)
        if start is None:
            self.starts[name] = len(self.newest)
            self.newest += packed
        else:
            self.newest[start : start + PACKED.size] = packed

    def put_new(self, names: Sequence[bytes], packed: bytes) -> None:
        """Versions of keys that have none here yet."""
        start = len(self.newest)
        self.starts.update(zip(names, range(start, start + len(packed), PACKED.size), strict=True))
        self.newest += packed

    def replace(self, position: Position, packed: bytes) -> None:
        self.replaced += _ROW.pack(position, packed)

    @property
    def count(self) -> int:
        """Of keys, or of versions that were replaced, if those are more."""
        return max(len(self.starts), len(self.replaced) // _ROW.size)


def _found(rows: bytes | bytearray, position: Position) -> bytes | None:
    """What was replaced there."""
    at = _first(rows, position)
    return _row(rows, at)[1] if at * _ROW.size < len(rows) and _row(rows, at)[0] == position else None


def _first(rows: bytes | bytearray, position: Position) -> int:
    """Of the rows that stand there or behind it."""
    return bisect_left(range(len(rows) // _ROW.size), position, key=lambda at: _row(rows, at)[0])


def _row(rows: bytes | bytearray, at: int) -> tuple[Position, bytes]:
    return _ROW.unpack_from(rows, at * _ROW.size)


class Changes(NamedTuple):
    """What is written at once: it brings the history from one position of the log to another. Versions stand one
    after the other: a batch is many, and is handed from one process to another."""

    base: Position
    reached: Position
    earliest: Position  # Where the log begins: what was replaced before it goes.
    names: bytes  # Of objects and keys …
    sizes: bytes  # … how long each of them is …
    newest: bytes  # … and their newest versions.
    replaced: bytes  # Rows, in the order of the log.

    @classmethod
    def of(cls, base: Position, reached: Position, earliest: Position, noted: Unwritten) -> Changes:
        names = b"".join(noted.starts), bytes(map(len, noted.starts))
        return cls(base, reached, earliest, *names, bytes(noted.newest), bytes(noted.replaced))

    def each_name(self) -> list[bytes]:
        return [self.names[start:stop] for start, stop in pairwise(accumulate(self.sizes, initial=0))]


def _entries(names: Sequence[bytes], versions: bytes) -> Iterator[tuple[bytes, bytes]]:
    """In the order of the names, so that few pages are looked for twice."""
    for at in sorted(range(len(names)), key=names.__getitem__):
        name, version = names[at], versions[at * PACKED.size : (at + 1) * PACKED.size]
        yield name, version + crc32c(name + version).to_bytes(_CHECKSUM_BYTES, "little")


def _blocks(rows: bytes) -> Iterator[tuple[bytes, bytes]]:
    for start in range(0, len(rows), _BLOCK_BYTES):
        block = rows[start : start + _BLOCK_BYTES]
        place = block[-_ROW.size : -PACKED.size]
        yield place, block + crc32c(place + block).to_bytes(_CHECKSUM_BYTES, "little")


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
                metasync=False,  # Whole it is after any crash; that it is the newest is seen to when a batch is done.
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

    def current(self, names: list[bytes]) -> list[bytes | None]:
        """Packed, as all that is looked up."""
        try:
            found = list(map(self._get, names))
        except lmdb.Error as error:
            raise HistoryError(f"{self._path}: {error}") from error
        return [None if data is None else _opened(name, data) for name, data in zip(names, found, strict=True)]

    def replaced(self, position: Position) -> bytes | None:
        with _as_history_error(self._path), self._view.cursor(self._replaced) as cursor:
            return _found(_block_at(cursor), position) if cursor.set_range(place_of(position)) else None

    def entries(self) -> Iterator[tuple[bytes, Version]]:
        """The newest version of every key, by name."""
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
                cursor.putmulti(_blocks(_taken_back(cursor, reached, changes.replaced)), append=True)
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
                    versions = b"".join([PACKED.pack(*version) for _, version in batch])
                    cursor.putmulti(_entries([name for name, _ in batch], versions), append=True)
            self._environment.sync()
            self.refresh()


def _taken_back(cursor: lmdb.Cursor, reached: Position, rows: bytes) -> bytes:
    """Rows that are not there yet, with those that a batch has left behind that was not finished, in the order of the
    log: all that stand at `reached` or behind it."""
    rows, left = rows[_first(rows, reached) * _ROW.size :], bytearray()
    while cursor.set_range(place_of(reached)):
        left += _block_at(cursor)
        cursor.delete()
    return b"".join(sorted({*_rows(left), *_rows(rows)})) if left else rows


def _block_at(cursor: lmdb.Cursor) -> bytes:
    return _opened(bytes(cursor.key()), bytes(cursor.value()), _BLOCK_SIZES)


def _rows(rows: bytes | bytearray) -> Iterator[bytes]:
    return (bytes(rows[start : start + _ROW.size]) for start in range(0, len(rows), _ROW.size))


def _trim(cursor: lmdb.Cursor, earliest: bytes) -> None:
    if cursor.first():
        for _ in range(HISTORY_TRIMMED_MAX // _BLOCK_ROWS):
            if bytes(cursor.key()) >= earliest or not cursor.delete():
                break
