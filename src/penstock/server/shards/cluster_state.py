"""Who serves what, as one process sees it: a broker that is alone, or a worker of several on one machine."""

from __future__ import annotations

from collections import Counter

from penstock.dialects.native.cluster import ClusterState, MemberState, ShardPlace
from penstock.server.shards.mesh import Mesh, owner_of


def state_alone(address: str = "") -> ClusterState:
    shard = ShardPlace(0, "0", address, 0, here=True, reachable=True)
    member = MemberState("0", 0, address, "serves", 1, None, None, this=True)
    return ClusterState("single", [shard], [member])


def state_of_workers(mesh: Mesh, worker: int, workers: int, address: str) -> ClusterState:
    """A worker has the same shards for all its life; one without a link was killed, or starts."""
    owners = [owner_of(shard, workers) for shard in range(len(mesh.ports))]
    held = Counter(owners)
    shards = [
        ShardPlace(shard, str(owner), address, 0, here=owner == worker, reachable=mesh.reaches(shard))
        for shard, owner in enumerate(owners)
    ]
    members = []
    for number in range(workers):
        is_this, is_linked = number == worker, number in mesh.links
        state = "serves" if is_this or is_linked else "gone"
        linked = None if is_this else is_linked
        members.append(MemberState(str(number), number, address, state, held[number], linked, None, this=is_this))
    return ClusterState("workers", shards, members)
