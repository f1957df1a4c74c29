"""Who serves what, from the tables of a store: a pure function of what was read."""

from __future__ import annotations

from penstock.cluster.nodes.cluster_state import state_of_nodes
from penstock.storage.postgres.nodes import Node, Nodes, Owned

LEASE_SECONDS = 6.0


def node(name: str, unseen_seconds: float = 1.0, *, is_draining: bool = False, links: str = "") -> Node:
    return Node(name, ord(name), f"{name}:1", links, unseen_seconds, LEASE_SECONDS, is_draining)


def shard(number: int, owner: str | None, *, is_leased: bool = True) -> Owned:
    return Owned(number, owner, owner and f"{owner}:1", is_leased, None, 3, 7, None)


def test_each_member_has_the_state_that_the_tables_show() -> None:
    nodes = [node("a"), node("b"), node("c", is_draining=True), node("d", is_draining=True), node("e", 1e9)]
    found = Nodes(nodes, [shard(0, "a"), shard(1, "a"), shard(2, "c")])
    members = state_of_nodes(found, "a", [0, 1]).members
    assert [(each.name, each.state, each.shards, each.seen_seconds_ago) for each in members] == [
        ("a", "serves", 2, 1.0),
        ("b", "waits", 0, 1.0),
        ("c", "drains", 1, 1.0),
        ("d", "drained", 0, 1.0),
        ("e", "gone", 0, None),
    ]
    assert [each.this for each in members] == [True, False, False, False, False]


def test_a_shard_whose_lease_has_ended_belongs_to_nobody() -> None:
    (free,) = state_of_nodes(Nodes([node("a"), node("b", 7.0)], [shard(0, "b", is_leased=False)]), "a", []).shards
    assert (free.owner, free.address, free.epoch, free.here, free.reachable) == (None, None, 3, False, False)


def test_a_broker_without_links_is_not_called_unlinked() -> None:
    members = state_of_nodes(Nodes([node("a"), node("b")], [shard(0, "a")]), "a", [0]).members
    assert [each.linked for each in members] == [None, None]
