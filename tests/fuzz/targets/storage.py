"""Targets: what is read from the disk, and the log as Spark gets it."""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec
from crc32c import crc32c

from penstock.errors import DamagedLogError, HistoryError
from penstock.model.times import rfc3339
from penstock.storage.arrow.columns import decode
from penstock.storage.backup.manifest import (
    BackupFile,
    Manifest,
    PartFacts,
    SnapshotState,
    SourceState,
    UnknownFormatError,
    decode_contents,
)
from penstock.storage.directory import DataDirectory, Identity
from penstock.storage.history import stored
from penstock.storage.history.versions import PACKED, rows_of, unpacked
from penstock.storage.log.batch import HEADER_BYTES, Header, check_payload, read_header
from penstock.storage.log.decode import events_at, events_of
from penstock.storage.log.encode import Batch
from penstock.storage.log.segment import SegmentReader, open_segment
from penstock.storage.log.segments import SegmentLog
from penstock.storage.log.snapshot import read_snapshot
from tests.fuzz.target import Target
from tests.storage.golden.make import GOLDEN, HERE

_SCRATCH = Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
_SEGMENTS = [path for name in GOLDEN for path in sorted((HERE / name / "log").glob("*.log"))]
_SNAPSHOTS = [path for name in GOLDEN for path in sorted((HERE / name / "snapshots").glob("*.snapshot"))]
_HEADER_FACTS = 64 - 4 - 16 - 4  # Where the checksum of the payload ends, before padding and the header's own.


def _batch(data: bytes) -> None:
    """As it comes from the disk or over HTTP: with checksums that are wrong, then with those that fit."""
    for batch in (data, _with_checksums(data)):
        try:
            header = read_header(batch)
            if header is not None:
                _read_batch(header, check_payload(header, batch[HEADER_BYTES : header.total_bytes]))
        except DamagedLogError:
            pass


def _read_batch(header: Header, payload: bytes) -> None:
    events = [event for event, _ in events_of(header, payload)]
    assert [event for _, event in events_at(header, payload, range(len(events)))] == events
    again = Batch(header.base_offset, header.base_position)
    for event in events:
        again.add(event)
    sealed = again.seal(header.time)
    assert [event for event, _ in events_of(_header(sealed), sealed[HEADER_BYTES:])] == events
    decode([(header, payload)]).validate(full=True)


def _header(batch: bytes) -> Header:
    header = read_header(batch)
    assert header is not None
    return header


def _with_checksums(data: bytes) -> bytes:
    """The same batch, with the checksums of a writer that meant it."""
    if len(data) < HEADER_BYTES:
        return data
    head, payload = bytearray(data[:HEADER_BYTES]), data[HEADER_BYTES:]
    head[40:44] = crc32c(payload).to_bytes(4, "little")
    head[60:64] = crc32c(bytes(head[:60])).to_bytes(4, "little")
    return bytes(head) + payload


def _batch_seeds() -> Iterator[bytes]:
    for path in _SEGMENTS:
        data = path.read_bytes()
        for at, header, _ in islice(SegmentReader(open_segment(path)).batches(), 8):
            yield data[at : at + header.total_bytes]


def _segment(data: bytes) -> None:
    """The only segment of a data directory, which a start reads, mends or refuses."""
    shutil.rmtree(_SCRATCH / "data", ignore_errors=True)
    directory = DataDirectory(_SCRATCH / "data")
    logging.disable(logging.CRITICAL)
    directory.open()
    try:
        (directory.log / f"{0:020d}.log").write_bytes(data)
        log = SegmentLog(directory, segment_bytes=64 << 10)
        _, events = log.recover()
        count = sum(1 for _ in events)
        assert log.end.offset == count
        log.close()
    except DamagedLogError:
        pass
    finally:
        directory.close()
        logging.disable(logging.NOTSET)


def _snapshot(data: bytes) -> None:
    path = _SCRATCH / f"{0:020d}.snapshot"
    path.write_bytes(data)
    try:
        for _, facts, columns in read_snapshot(path):
            assert len(facts) + sum(map(len, columns)) <= len(data)
    except DamagedLogError:
        pass


def _history_entry(data: bytes) -> None:
    """The first 16 bytes are the key."""
    key, value = data[:16], data[16:]
    for given in (value, stored._with_checksum(key, value)):
        try:
            unpacked(stored._checked(key, given))
        except HistoryError:
            pass
        try:
            block = stored._checked(key, given, stored._BLOCK_SIZES)
            assert b"".join(rows_of(block)) == block
        except HistoryError:
            pass
    if len(value) == PACKED.size:
        assert PACKED.pack(*unpacked(value)) == value


def _manifest(data: bytes) -> None:
    """What a backup may list is what its state says: nothing else is read, or written."""
    try:
        contents = decode_contents(data)
    except (ValueError, UnknownFormatError):
        return
    assert contents.bytes >= 0
    assert contents.shards
    for manifest in contents.shards:
        assert all(_NAME.fullmatch(file.path) for file in manifest.files)
        manifest.state.identity.successor(manifest.state.offset)
        rfc3339(manifest.state.time)


_NAME = re.compile(r"log/\d{20}\.log|snapshots/\d{20}\.snapshot|history/\d{20}\.mdb")


def _manifests() -> Iterator[bytes]:
    identity = Identity(1, 0, "0" * 32)
    part, newest = PartFacts(0, 0, 7, 100), SnapshotState(9, 50)
    state = SourceState("log", identity, 10**18, 9, 100, [part], newest, 100)
    names = (f"log/{0:020}.log", f"snapshots/{9:020}.snapshot", f"history/{100:020}.mdb")
    files = [BackupFile(name, size, "0" * 64) for name, size in zip(names, (164, 50, 10), strict=True)]
    whole = Manifest(format=1, version="1", state=state, files=files)
    yield msgspec.json.encode(whole)
    store = {"format": 1, "shards": 1, "id_key": "0" * 32}
    yield msgspec.json.encode({"format": 2, "version": "1", "store": store, "shards": [whole]})
    yield msgspec.json.encode({"format": 2, "version": "1", "store": store | {"shards": -1}, "shards": []})


TARGETS = [
    Target("backup-manifest", _manifest, _manifests),
    Target("log-batch", _batch, _batch_seeds),
    Target("log-segment", _segment, lambda: [path.read_bytes() for path in _SEGMENTS if path.stem.strip("0") == ""]),
    Target("snapshot", _snapshot, lambda: [path.read_bytes() for path in _SNAPSHOTS]),
    Target("history-entry", _history_entry, lambda: [bytes(16 + PACKED.size), bytes(range(100)), b"k" * 16]),
]
