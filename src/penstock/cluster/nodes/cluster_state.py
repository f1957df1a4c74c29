"""Who serves what, as one of the brokers on a store sees it: what the tables said last, and its links."""

from __future__ import annotations

from collections.abc import Collection

from penstock.cluster.links.mesh import Mesh
from penstock.model.cluster import ClusterState, MemberState, ShardPlace
from penstock.storage.postgres.nodes import Node, Nodes, Owned

_DAY_SECONDS = 86_400.0


def state_of_nodes(found: Nodes, name: str, here: Collection[int], mesh: Mesh | None = None) -> ClusterState:
    """`name`: of this broker. `here`: the shards that it serves. `mesh`: its links, if it has some."""

    def place(owned: Owned) -> ShardPlace:
        is_here = owned.shard in here
        reachable = mesh.reaches(owned.shard) if mesh else is_here
        owner = (owned.owner, owned.address) if owned.is_leased else (None, None)
        return ShardPlace(owned.shard, *owner, owned.epoch, here=is_here, reachable=reachable)

    def member(node: Node) -> MemberState:
        is_this = node.name == name
        linked = None if is_this or mesh is None or not node.links else node.number in mesh.links
        seen = round(node.unseen_seconds, 1) if node.unseen_seconds < _DAY_SECONDS else None
        facts = (node.name, node.number, node.address, found.state_of(node), found.held_by(node))
        return MemberState(*facts, linked, seen, this=is_this)

    return ClusterState("nodes", [place(each) for each in found.shards], [member(each) for each in found.nodes])
