"""Who serves what, as one process sees it: a broker that is alone, or a worker of several on one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from penstock.cluster.links.fellow import Fellow
from penstock.cluster.links.mesh import owner_of
from penstock.model.cluster import ClusterState, MemberState, ShardPlace


def state_alone(address: str = "") -> ClusterState:
    shard = ShardPlace(0, "0", address, 0, here=True, reachable=True)
    member = MemberState("0", 0, address, "serves", 1, None, None, this=True)
    return ClusterState("single", [shard], [member])


def state_of_workers(fellows: Sequence[Fellow], shards: int, address: str) -> ClusterState:
    """A worker has the same shards for all its life; one without a link was killed, or starts."""
    owners = [owner_of(shard, len(fellows)) for shard in range(shards)]
    held = Counter(owners)
    places = [
        ShardPlace(shard, str(owner), address, 0, here=fellows[owner].is_this, reachable=not fellows[owner].is_away)
        for shard, owner in enumerate(owners)
    ]
    members = []
    for each in fellows:
        state = "serves" if not each.is_away else "silent" if each.is_linked else "gone"
        linked = None if each.is_this else each.is_linked
        facts = (str(each.number), each.number, address, state, held[each.number], linked, None)
        members.append(MemberState(*facts, this=each.is_this))
    return ClusterState("workers", places, members)
