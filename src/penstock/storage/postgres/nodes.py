"""The tables of a store that say which brokers there are, who has which shard, and what operators want."""

from __future__ import annotations

from typing import NamedTuple

from penstock.storage.postgres.connection import Connection

_SEEN = """
UPDATE penstock.node SET seen = clock_timestamp(), address = %s, links = %s, lease_seconds = %s WHERE name = %s
RETURNING number
"""
_JOIN = """
INSERT INTO penstock.node (number, seen, address, links, lease_seconds, name)
SELECT min(free), clock_timestamp(), %s, %s, %s, %s
FROM generate_series(0, (SELECT count(*) FROM penstock.node)) AS free
WHERE free NOT IN (SELECT number FROM penstock.node) RETURNING number
"""
_LEAVE = "UPDATE penstock.node SET seen = 'epoch' WHERE name = %s"
_FORGET = "DELETE FROM penstock.node WHERE seen < clock_timestamp() - interval '1 day' AND NOT is_draining"
_NODES = """
SELECT name, number, address, links, extract(epoch FROM clock_timestamp() - seen)::float, lease_seconds, is_draining
FROM penstock.node ORDER BY 1
"""
_SHARDS = """
SELECT id, owner, address, lease_until > clock_timestamp(), pinned, epoch, last_batch, lag_seconds
FROM penstock.shard ORDER BY 1
"""


class Node(NamedTuple):
    """A broker that uses the store, whether it serves or waits."""

    name: str  # As the owner of a shard.
    number: int  # Small. No other broker that is there has it.
    address: str
    links: str  # Where other brokers reach it; empty if they cannot.
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
    lag_seconds: float | None  # How long the oldest message waits that another shard owes to it.


class Nodes(NamedTuple):
    """What the tables say at one moment."""

    nodes: list[Node]
    shards: list[Owned]

    def held_by(self, node: Node) -> int:
        """How many shards a broker has."""
        return sum(each.owner == node.name and each.is_leased for each in self.shards)

    def state_of(self, node: Node) -> str:
        held = self.held_by(node)
        if not node.is_there:
            return "gone"
        if node.is_draining:
            return "drains" if held else "drained"
        return "serves" if held else "waits"


class NodeTables:
    """For one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def see(self, name: str, address: str, lease_seconds: float, links: str = "") -> int:
        """Note that a broker is there. Returns its number."""
        facts = (address, links, lease_seconds, name)
        found = self._connection.row(_SEEN, facts)
        if found is None:
            with self._connection.transaction():  # Or two would find the same number.
                self._connection.execute("LOCK TABLE penstock.node IN SHARE ROW EXCLUSIVE MODE")
                found = self._connection.row(_JOIN, facts)
        assert found is not None
        return int(found[0])

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
