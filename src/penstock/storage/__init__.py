"""Events on disk: the log, the Object History, Arrow tables. `port.py` is what the rest of the system sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Whoever needs only a small module of storage does not pay for numpy.
    from penstock.storage.directory import DataDirectory
    from penstock.storage.port import Log
    from penstock.storage.postgres.store import PostgresStore


def open_log(directory: DataDirectory, *, segment_bytes: int) -> Log:
    """The log of a data directory that this process has taken. Not recovered yet."""
    from penstock.storage.log.segments import SegmentLog

    assert directory.identity is not None
    return SegmentLog(directory, segment_bytes=segment_bytes, shard=directory.identity.shard)


def open_store(url: str, address: str, lease_seconds: float) -> PostgresStore:
    """A store that holds the log of a broker with this address. Nothing is owned yet."""
    from penstock.storage.postgres.store import PostgresStore

    return PostgresStore(url, address, lease_seconds=lease_seconds)
