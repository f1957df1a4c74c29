"""A broker among others on one store: it shows that it is there, and follows where shards are placed.

An owner that is started again acquires its own shards at once. A free shard is for the node that it is placed at. A
node hands over what is placed at another one. If nobody is there for a shard, anyone may have it.
"""

from __future__ import annotations

from collections.abc import Collection
from threading import Lock
from typing import NamedTuple

from penstock.cluster.nodes.placement import placement
from penstock.errors import LeaseHeldError, StoreError
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


class Share(NamedTuple):
    """What a node should do about shards."""

    acquire: list[int]  # They are free, or its own from before.
    await_: list[int]  # They will be its own when others have handed them over.
    hand_over: dict[int, str]  # To these nodes.


def share_of(name: str, held: Collection[int], found: Nodes) -> Share:
    """The share of a node that holds these shards now."""
    where = placed(found)
    is_draining = any(each.is_draining for each in found.nodes if each.name == name)
    acquire, await_ = [], []
    for shard in found.shards:
        is_own = shard.owner == name and not is_draining
        is_free = not shard.is_leased and where[shard.shard] in (None, name)
        if shard.shard in held:
            continue
        if is_own or is_free:
            acquire.append(shard.shard)
        elif where[shard.shard] == name:
            await_.append(shard.shard)
    hand_over = {number: to for number in held if (to := where[number]) not in (None, name)}
    return Share(acquire, await_, {number: to for number, to in hand_over.items() if to})


class Member:
    """For any thread: one that reads may still do so when another one says that the node leaves."""

    def __init__(self, store: PostgresStore, directory: DataDirectory, links: str = "") -> None:
        """`links`: where other nodes reach this one, if they can."""
        self.name = owner_of(directory)
        self.number = 0  # Known when it was seen.
        self._store = store
        self._directory = directory
        self._links = links
        self._connection: Connection | None = None
        self._turn = Lock()
        self._seen_at = float("-inf")
        self._latest = Nodes([], []), 0.0  # What was read last, and when.
        self.look_seconds = min(_LOOK * store.lease_seconds, _LOOK_SECONDS_MAX)

    def acquire(self) -> None:
        """Own the shard if it is placed here. Raises `LeaseHeldError` if it is not, or another node has it."""
        found = self.read()
        shard = found.shards[self._store.number]
        if not shard.is_leased and shard.shard not in share_of(self.name, (), found).acquire:
            raise LeaseHeldError(f"shard {shard.shard} is placed at {placed(found)[shard.shard]}")
        self._store.acquire(self._directory)

    def placed_elsewhere(self) -> str | None:
        """The node that should have the shard in place of this one; None: it stays here."""
        number = self._store.number
        return share_of(self.name, {number}, self.read()).hand_over.get(number)

    def leave(self) -> None:
        """Show that this node is gone, so that nobody waits for it."""
        with self._turn:
            self._seen_at = float("inf")
            try:
                self._tables().leave(self.name)
            except StoreError:
                pass  # The others find out by themselves.
            if self._connection:
                self._connection.close()
                self._connection = None

    def read(self) -> Nodes:
        """What the tables say. Shows now and then that this node is there, until it leaves."""
        with self._turn:
            tables = self._tables()
            if now() >= self._seen_at + self.look_seconds:
                self.number = tables.see(self.name, self._store.address, self._store.lease_seconds, self._links)
                self._seen_at = now()
            found = tables.read()
            self._latest = found, now()
            return found

    @property
    def known(self) -> Nodes:
        """What was read last, for any thread. Nobody was seen since then."""
        found, read_at = self._latest
        since = now() - read_at
        nodes = [each._replace(unseen_seconds=each.unseen_seconds + since) for each in found.nodes]
        return Nodes(nodes, found.shards)

    def _tables(self) -> NodeTables:
        if self._connection is None or self._connection.is_over:
            self._connection = self._store.connect()
        return NodeTables(self._connection)
