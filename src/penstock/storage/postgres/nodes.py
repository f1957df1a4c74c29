"""The tables of a store that say which brokers there are, who has which shard, and what operators want."""

from __future__ import annotations

from typing import NamedTuple

from penstock.storage.postgres.connection import Connection

_SEEN = """
INSERT INTO penstock.node VALUES (%s, %s, clock_timestamp(), %s) ON CONFLICT (name) DO UPDATE
SET address = excluded.address, seen = excluded.seen, lease_seconds = excluded.lease_seconds
"""
_LEAVE = "UPDATE penstock.node SET seen = 'epoch' WHERE name = %s"
_FORGET = "DELETE FROM penstock.node WHERE seen < clock_timestamp() - interval '1 day' AND NOT is_draining"
_NODES = """
SELECT name, address, extract(epoch FROM clock_timestamp() - seen)::float, lease_seconds, is_draining
FROM penstock.node ORDER BY 1
"""
_SHARDS = """
SELECT id, owner, address, lease_until > clock_timestamp(), pinned, epoch, last_batch FROM penstock.shard ORDER BY 1
"""


class Node(NamedTuple):
    """A broker that uses the store, whether it serves or waits."""

    name: str  # As the owner of a shard.
    address: str
    unseen_seconds: float
    lease_seconds: float
    is_draining: bool

    @property
    def is_there(self) -> bool:
        """Whether it was seen within a lease."""
        return self.unseen_seconds < self.lease_seconds


class Owned(NamedTuple):
    """A shard and its owner, the present or the last one."""

    shard: int
    owner: str | None
    address: str | None
    is_leased: bool
    pinned: str | None  # To the node with this name.
    epoch: int
    last_batch: int


class Nodes(NamedTuple):
    """What the tables say at one moment."""

    nodes: list[Node]
    shards: list[Owned]


class NodeTables:
    """For one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def see(self, name: str, address: str, lease_seconds: float) -> None:
        """Note that a broker is there."""
        self._connection.execute(_SEEN, (name, address, lease_seconds))

    def leave(self, name: str) -> None:
        """Note that a broker is gone. If it is to hand over everything, that stays."""
        self._connection.execute(_LEAVE, (name,))
        self._connection.execute(_FORGET)

    def read(self) -> Nodes:
        nodes = [Node(*row) for row in self._connection.rows(_NODES)]
        return Nodes(nodes, [Owned(*row) for row in self._connection.rows(_SHARDS)])

    def drain(self, name: str, is_draining: bool) -> None:
        """Let a broker own nothing, or let it own shards again."""
        self._connection.execute("UPDATE penstock.node SET is_draining = %s WHERE name = %s", (is_draining, name))

    def pin(self, shard: int, name: str | None) -> None:
        """Let a broker own a shard, whatever else is computed; None: whoever it is computed for."""
        self._connection.execute("UPDATE penstock.shard SET pinned = %s WHERE id = %s", (name, shard))

    def elsewhere(self) -> dict[str, int]:
        """The queues that are not in the shard of their name."""
        return dict(self._connection.rows("SELECT queue, shard FROM penstock.elsewhere"))
