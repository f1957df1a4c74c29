"""Where shards are placed by the tables of a store: over the brokers that are there and take part."""

from __future__ import annotations

from penstock.cluster.nodes.member import placed, share_of
from penstock.storage.postgres.nodes import Node, Nodes, Owned

LEASE_SECONDS = 6.0


def node(name: str, unseen_seconds: float = 1.0, *, is_draining: bool = False) -> Node:
    return Node(name, 0, f"{name}.example:7843", "", unseen_seconds, LEASE_SECONDS, is_draining)


def shard(owner: str | None, *, is_leased: bool = True, pinned: str | None = None) -> Owned:
    return Owned(0, owner, None, is_leased, pinned, 1, 1, None)


def place(owned: Owned, *nodes: Node) -> str | None:
    return placed(Nodes(list(nodes), [owned]))[0]


def test_a_shard_stays_with_its_owner_whoever_comes() -> None:
    assert {place(shard("a"), node("a"), node(other)) for other in "bcdef"} == {"a"}


def test_a_shard_whose_lease_has_ended_goes_to_another_even_if_its_owner_was_seen_lately() -> None:
    assert place(shard("a", is_leased=False), node("a", 5.9), node("b")) == "b"


def test_a_free_shard_goes_to_a_broker_that_was_seen_within_a_lease() -> None:
    assert {place(shard(None, is_leased=False), node(gone, 6.1), node("b")) for gone in "acdef"} == {"b"}


def test_a_broker_that_drains_has_nothing_unless_it_is_the_only_one() -> None:
    draining = node("a", is_draining=True)
    assert place(shard("a"), draining, node("b")) == "b"
    assert place(shard("a"), draining) is None


def test_a_pinned_shard_goes_where_it_is_pinned_if_that_broker_takes_part() -> None:
    pinned = shard("a", pinned="b")
    assert place(pinned, node("a"), node("b")) == "b"
    assert place(pinned, node("a"), node("b", 60)) == "a"
    assert place(pinned, node("a"), node("b", is_draining=True)) == "a"


def owned(number: int, owner: str | None, *, is_leased: bool = True) -> Owned:
    return Owned(number, owner, None, is_leased, None, 1, 1, None)


def test_a_node_acquires_what_is_free_and_its_own_awaits_its_part_and_hands_over_the_rest() -> None:
    shards = [owned(0, "a"), owned(1, "a"), owned(2, "a"), owned(3, None, is_leased=False)]
    both = Nodes([node("a"), node("b")], shards)
    first, second = share_of("a", {0, 1, 2}, both), share_of("b", (), both)
    assert list(first.hand_over.values()) == ["b"]
    assert (first.acquire, second.acquire) == ([], [3])  # The free one goes to the node with less.
    assert second.await_ == list(first.hand_over)
    assert share_of("a", (), both).acquire == [0, 1, 2]  # It was started again, before its lease has ended.


def test_a_node_that_drains_acquires_nothing_not_even_what_it_had() -> None:
    draining = Nodes([node("a", is_draining=True), node("b")], [owned(0, "a")])
    assert share_of("a", (), draining).acquire == []
    assert share_of("a", {0}, draining).hand_over == {0: "b"}
