"""Snapshot files: the state as of one offset, beside the log, whole or not at all.

    header | section … | end section

A section is a kind, facts (JSON) and columns (raw bytes), with a CRC-32C over all of them. The end section has the
number of the others, so that a truncated snapshot is not taken for a whole one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from struct import Struct
from typing import BinaryIO

import numpy as np
from crc32c import crc32c

from penstock.errors import DamagedLogError
from penstock.model.values import Nanos
from penstock.storage.directory import create_private, publish_durably
from penstock.storage.log.batch import Point
from penstock.storage.port import Section, SnapshotFacts

_MAGIC = b"PSNP"
_FORMAT = 3
_FORMATS_READ = (2, 3)  # Rows of format 2 had no object and no topics; those of format 1, no lease.
_HEADER = Struct("<4sHHQQqI")  # The last field is the CRC-32C of the others.
_SECTION = Struct("<12sIQQI")  # Kind, size of the facts, sizes of two columns, CRC-32C of everything.
_COLUMNS_MAX = 2
_SYNC_EVERY_BYTES = 32 << 20  # So that the final sync has little left to do.


def snapshot_path(directory: Path, offset: int) -> Path:
    return directory / f"{offset:020d}.snapshot"


def _unfinished_path(directory: Path, offset: int) -> Path:
    return snapshot_path(directory, offset).with_suffix(".tmp")


def write_snapshot(directory: Path, sections: Iterable[Section], at: Point, time: Nanos) -> None:
    """Write and sync a snapshot under a temporary name. `publish_snapshot` makes it count."""
    temporary = _unfinished_path(directory, at.offset)
    with create_private(temporary) as file:
        head = _HEADER.pack(_MAGIC, _FORMAT, 0, *at, time, 0)[:-4]
        file.write(head + crc32c(head).to_bytes(4, "little"))
        count = unsynced = 0
        for section in sections:
            unsynced += _write_section(file, section)
            count += 1
            if unsynced >= _SYNC_EVERY_BYTES:
                file.flush()
                os.fdatasync(file.fileno())
                unsynced = 0
        _write_section(file, ("end", str(count).encode(), ()))
        file.flush()
        os.fsync(file.fileno())


def publish_snapshot(directory: Path, offset: int) -> SnapshotFacts:
    """Make the snapshot of this offset count."""
    path = snapshot_path(directory, offset)
    publish_durably(_unfinished_path(directory, offset), path)
    return read_facts(path)


def _write_section(file: BinaryIO, section: Section) -> int:
    kind, facts, columns = section
    assert len(columns) <= _COLUMNS_MAX
    buffers = [np.ascontiguousarray(column).reshape(-1).view(np.uint8).data for column in columns]
    lengths = [len(buffer) for buffer in buffers] + [0] * (_COLUMNS_MAX - len(buffers))
    crc = crc32c(facts)
    for buffer in buffers:
        crc = crc32c(buffer, crc)
    head = _SECTION.pack(kind.encode(), len(facts), *lengths, 0)[:-4]
    file.write(head + crc32c(head, crc).to_bytes(4, "little"))
    file.write(facts)
    for buffer in buffers:
        file.write(buffer)
    return len(facts) + sum(lengths)


def list_snapshots(directory: Path) -> list[Path]:
    """Published snapshots, newest first."""
    return sorted(directory.glob("*.snapshot"), reverse=True)


def read_facts(path: Path) -> SnapshotFacts:
    with path.open("rb") as file:
        return _read_header(path, file)


def read_snapshot(path: Path) -> Iterator[Section]:
    """The sections of a snapshot, each checked. Raises `DamagedLogError` where it is not whole."""
    with path.open("rb") as file:
        _read_header(path, file)
        count = 0
        while True:
            kind, facts, columns = _read_section(path, file)
            if kind == "end":
                break
            yield kind, facts, columns
            count += 1
        if facts != str(count).encode():
            raise DamagedLogError(f"{path}: sections are missing")


def check_snapshot(path: Path) -> None:
    for _ in read_snapshot(path):
        pass


def remove_unfinished(directory: Path) -> None:
    for path in directory.glob("*.tmp"):
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


def _read_header(path: Path, file: BinaryIO) -> SnapshotFacts:
    data = file.read(_HEADER.size)
    whole = len(data) == _HEADER.size and crc32c(data[:-4]) == int.from_bytes(data[-4:], "little")
    if not whole or data[:4] != _MAGIC:
        raise DamagedLogError(f"{path}: the snapshot's header is damaged")
    _, number, _, offset, position, time, _ = _HEADER.unpack(data)
    if number not in _FORMATS_READ:
        raise DamagedLogError(f"{path} has format {number}; this version reads formats 2 and 3")
    return SnapshotFacts(offset, position, time, os.fstat(file.fileno()).st_size)


def _read_section(path: Path, file: BinaryIO) -> Section:
    head = file.read(_SECTION.size)
    if len(head) < _SECTION.size:
        raise DamagedLogError(f"{path}: the snapshot ends too early")
    kind, facts_bytes, *lengths, crc = _SECTION.unpack(head)
    if facts_bytes + sum(lengths) > os.fstat(file.fileno()).st_size:
        raise DamagedLogError(f"{path}: a section of the snapshot is damaged")
    facts = file.read(facts_bytes)
    buffers = [file.read(length) for length in lengths]
    seen = crc32c(facts)
    for buffer in buffers:
        seen = crc32c(buffer, seen)
    if crc32c(head[:-4], seen) != crc:
        raise DamagedLogError(f"{path}: a section of the snapshot is damaged")
    columns = tuple(np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers)
    return kind.rstrip(b"\0").decode(), facts, columns
