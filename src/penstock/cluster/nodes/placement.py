"""Which node should have which shard. Pure: every node computes the same from the same tables, so nobody leads.

A shard stays where it is as long as its node is there and has no more than its part. The rest goes to the nodes with
room, to each shard the one with the highest hash of both: so the shards of a lost node are spread over all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b


def placement(
    owners: Sequence[str | None], nodes: Collection[str], pinned: Mapping[int, str] | None = None
) -> list[str | None]:
    """The node of each shard. `owners`: those of today. `nodes`: those that may have shards. `pinned`: shards that an
    operator has given to a node, which counts if that node is there. All None if there are no nodes."""
    if not nodes:
        return [None] * len(owners)
    placed = {shard: node for shard, node in (pinned or {}).items() if node in nodes}
    room = _room(owners, nodes) - Counter(placed.values())  # Only what is above 0 is left.
    for shard in sorted(set(range(len(owners))) - set(placed), key=lambda shard: _score(shard, owners[shard])):
        owner = owners[shard]
        if owner is not None and room[owner] > 0:
            placed[shard] = owner
            room[owner] -= 1
    for shard in range(len(owners)):
        if shard not in placed:
            placed[shard] = max((node for node in room if room[node] > 0), key=lambda node: _score(shard, node))
            room[placed[shard]] -= 1
    return [placed[shard] for shard in range(len(owners))]


def _room(owners: Sequence[str | None], nodes: Collection[str]) -> Counter[str]:
    """How many shards each node may have: the same number, and one more for those that have most today, if the
    number of shards is not a multiple of that of the nodes."""
    least, more = divmod(len(owners), len(nodes))
    held = Counter(owner for owner in owners if owner is not None)
    largest = sorted(nodes, key=lambda node: (-held[node], node))[:more]
    return Counter({node: least + (node in largest) for node in nodes})


def _score(shard: int, node: str | None) -> bytes:
    return blake2b(f"{shard} {node}".encode(), digest_size=8).digest()
