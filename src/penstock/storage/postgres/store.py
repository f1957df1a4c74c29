"""A PostgreSQL store as a broker uses it: its identity, the ownership of a shard, and the log of that shard."""

from __future__ import annotations

import logging
import socket
from contextlib import closing
from functools import partial

from penstock.errors import DeposedError
from penstock.storage.directory import DataDirectory, Identity
from penstock.storage.postgres.connection import Connection, Dropped, display, parameters
from penstock.storage.postgres.durability import Durability, read_durability
from penstock.storage.postgres.lease import Lag, Leases, Lost, now
from penstock.storage.postgres.log import StoredLog
from penstock.storage.postgres.schema import identity_of
from penstock.storage.postgres.shard import Ownership, Shard

logger = logging.getLogger(__name__)


class PostgresStore:
    """One shard of a store, owned by this process from `acquire` until it is released or lost."""

    def __init__(
        self,
        url: str,
        address: str = "",
        shard: int = 0,
        lease_seconds: float = 6.0,
        leases: Leases | None = None,
        owner: str = "",
    ) -> None:
        """`address`: where clients reach this broker, for people who look at the store. `leases`: of all shards that
        this process owns. `owner`: its name, if it is not that of the directory."""
        self._url = parameters(url)
        self.display = display(url)
        self.address = address
        self.number = shard
        self.lease_seconds = lease_seconds
        self.on_lost: Lost = lambda _: None  # Called in another thread when the lease is lost.
        self.lag_seconds: Lag = lambda: None  # Called in another thread too: how far the shard lags behind others.
        self._open = Dropped()
        self._shard: Shard | None = None
        self._owned: Ownership | None = None
        self._leases = leases or Leases(partial(Connection, self._url), lease_seconds)
        self._owner = owner

    def identity(self) -> Identity:
        with closing(Connection(self._url)) as connection:
            return identity_of(connection, self.number)

    def of_shard(self, number: int, owner: str) -> PostgresStore:
        """Another shard of the same store, which this process may own too."""
        return PostgresStore(self._url, self.address, number, self.lease_seconds, self._leases, owner)

    @property
    def epoch(self) -> int:
        """In which the shard is owned."""
        assert self._owned is not None
        return self._owned.epoch

    def connect(self) -> Connection:
        """A connection that lives on when the shard is dropped."""
        return Connection(self._url)

    def durability(self) -> Durability:
        with closing(Connection(self._url)) as connection:
            return read_durability(connection)

    # ── Ownership ───────────────────────────────────────────────────────────────────────────────────────────

    def acquire(self, directory: DataDirectory) -> None:
        """Own the shard in a new epoch. Raises `LeaseHeldError` while another broker does, and `DeposedError` if one
        did since this process did."""
        self.drop()
        began, before = now(), self._owned
        with closing(Connection(self._url)) as connection:
            shard = Shard(connection, self.number, lease_seconds=self.lease_seconds)
            owned = shard.acquire(self._owner or owner_of(directory), self.address)
        self._shard, self._owned = shard, owned
        if before and owned.epoch != before.epoch + 1:
            raise DeposedError(f"another broker has owned shard {self.number} in epoch {owned.epoch - 1}")
        self._leases.hold(shard, began, self._lose, lambda: self.lag_seconds())
        logger.info("shard_acquired", extra={"shard": self.number, "epoch": owned.epoch})

    def had_batch(self, epoch: int, offset: int) -> bool:
        """Whether the batch that begins at this offset was committed in this epoch. Raises `StoreError` unless that
        is over."""
        with closing(Connection(self._url)) as connection:
            return Shard(connection, self.number, epoch).had_batch(offset)

    def _lose(self, error: BaseException) -> None:
        self._open.all()
        self.on_lost(error)

    def drop(self) -> None:
        """Stop renewing and end all connections. The lease runs on in the store."""
        self._leases.let_go(self.number)
        self._open.all()

    def release(self) -> None:
        """Let another broker own the shard now. Everything is written."""
        owned = self._owned
        self.drop()
        if owned:
            with closing(Connection(self._url)) as connection:
                Shard(connection, self.number, owned.epoch).release()
            logger.info("shard_released", extra={"shard": self.number, "epoch": owned.epoch})

    def open_log(self, directory: DataDirectory, *, segment_bytes: int) -> StoredLog:
        """The log of the shard, which this process owns. Not recovered yet."""
        assert self._shard is not None
        assert self._owned is not None
        return StoredLog(directory, self._connect, self._shard, self._owned, segment_bytes=segment_bytes)

    def _connect(self) -> Connection:
        return self._open.add(Connection(self._url))


def owner_of(directory: DataDirectory) -> str:
    """The name of this owner. It stays with the directory, which one process at a time has: a broker that is started
    again after a crash need not wait for its own lease."""
    return f"{(directory.path / 'owner').read_text()}@{socket.gethostname()}"
