"""A broker's use of a store, without the broker: it owns a shard, and has its log."""

from __future__ import annotations

from pathlib import Path

from penstock.storage.directory import DataDirectory
from penstock.storage.postgres.log import StoredLog
from penstock.storage.postgres.store import PostgresStore

SEGMENT_BYTES = 1024


class StoreUser:
    """The log is not recovered yet."""

    def __init__(self, url: str, shard: int, path: Path) -> None:
        self.directory = DataDirectory(path)
        self.store = PostgresStore(url, "test", shard)
        self.lost: list[BaseException] = []
        self.store.on_lost = self.lost.append
        self.directory.open(self.store.identity())
        self.log = self.acquire()

    def acquire(self) -> StoredLog:
        self.store.acquire(self.directory)
        self.log = self.store.open_log(self.directory, segment_bytes=SEGMENT_BYTES)
        return self.log

    def close(self) -> None:
        """Stop in order: others need not wait."""
        self.log.close()
        self.store.release()
        self.directory.close()

    def die(self) -> None:
        """As if the process were killed: nothing is released."""
        self.log.abandon()
        self.store.drop()
        self.directory.close()
