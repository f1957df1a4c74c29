"""A broker among others on one store: it shows that it is there, and follows where shards are placed.

An owner that is started again acquires its own shard at once. A free shard is for the node that it is placed at. A
node hands over what is placed at another one. If nobody is there for a shard, anyone may have it.
"""

from __future__ import annotations

from penstock.errors import LeaseHeldError, StoreError
from penstock.server.cluster.placement import placement
from penstock.storage.directory import DataDirectory
from penstock.storage.postgres.connection import Connection
from penstock.storage.postgres.lease import now
from penstock.storage.postgres.nodes import Nodes, NodeTables
from penstock.storage.postgres.store import PostgresStore, owner_of

_LOOK = 1 / 3  # Of the lease: how often a node shows that it is there. One that does not for a whole lease is gone.
_LOOK_SECONDS_MAX = 2.0  # So that operators need not wait, however long the lease is.


def placed(found: Nodes) -> list[str | None]:
    """The node of each shard, over the nodes that are there and take part."""
    lapsed = {
        each.owner for each in found.shards if not each.is_leased
    }  # They died, or will acquire it by themselves.
    nodes = {node.name for node in found.nodes if node.is_there and not node.is_draining and node.name not in lapsed}
    owners = [each.owner if each.is_leased else None for each in found.shards]
    pinned = {each.shard: each.pinned for each in found.shards if each.pinned}
    return placement(owners, nodes, pinned)


class Member:
    """For one thread at a time."""

    def __init__(self, store: PostgresStore, directory: DataDirectory) -> None:
        self.name = owner_of(directory)
        self._store = store
        self._directory = directory
        self._connection: Connection | None = None
        self._seen_at = float("-inf")
        self.look_seconds = min(_LOOK * store.lease_seconds, _LOOK_SECONDS_MAX)

    def acquire(self) -> None:
        """Own the shard if it is placed here. Raises `LeaseHeldError` if it is not, or another node has it."""
        found = self._read()
        shard = found.shards[self._store.number]
        node = placed(found)[shard.shard]
        is_draining = any(each.is_draining for each in found.nodes if each.name == self.name)
        is_own = shard.owner == self.name and not is_draining
        if not shard.is_leased and node not in (None, self.name) and not is_own:
            raise LeaseHeldError(f"shard {shard.shard} is placed at {node}")
        self._store.acquire(self._directory)

    def placed_elsewhere(self) -> str | None:
        """The node that should have the shard in place of this one; None: it stays here."""
        node = placed(self._read())[self._store.number]
        return None if node == self.name else node

    def leave(self) -> None:
        """Show that this node is gone, so that nobody waits for it."""
        try:
            self._tables().leave(self.name)
        except StoreError:
            pass  # The others find out by themselves.
        if self._connection:
            self._connection.close()
            self._connection = None

    def _read(self) -> Nodes:
        tables = self._tables()
        if now() >= self._seen_at + self.look_seconds:
            tables.see(self.name, self._store.address, self._store.lease_seconds)
            self._seen_at = now()
        return tables.read()

    def _tables(self) -> NodeTables:
        if self._connection is None or self._connection.is_over:
            self._connection = self._store.connect()
        return NodeTables(self._connection)
