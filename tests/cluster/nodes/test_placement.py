"""Which node should have which shard: balance, and as few moves as balance allows."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.cluster.nodes.placement import placement
from tests.support.effort import effort

NODES = st.sets(st.text("abcdefgh", min_size=1, max_size=3), min_size=1, max_size=12)
SHARDS = st.integers(1, 80)


@st.composite
def stores(draw: st.DrawFn) -> tuple[list[str | None], set[str]]:
    """Owners of today, some of which are gone, and the nodes that are there."""
    nodes = draw(NODES)
    owner = st.one_of(st.none(), st.sampled_from([*sorted(nodes), "gone"]))
    shards = draw(SHARDS)
    return draw(st.lists(owner, min_size=shards, max_size=shards)), nodes


@effort(200)
@given(stores())
def test_every_shard_has_a_node_that_is_there_and_no_node_has_two_more_than_another(
    store: tuple[list[str | None], set[str]],
) -> None:
    owners, nodes = store
    placed = placement(owners, nodes)
    assert set(placed) <= nodes
    counts = Counter(placed)
    loads = [counts[node] for node in nodes]
    assert max(loads) - min(loads) <= 1


@effort(200)
@given(stores())
def test_what_is_placed_stays(store: tuple[list[str | None], set[str]]) -> None:
    owners, nodes = store
    placed = placement(owners, nodes)
    assert placement(placed, nodes) == placed


@effort(200)
@given(SHARDS, NODES)
def test_only_the_shards_of_a_lost_node_move(shards: int, nodes: set[str]) -> None:
    before = placement([None] * shards, nodes | {"lost"})
    after = placement(before, nodes)
    assert all(was in (node, "lost") for was, node in zip(before, after, strict=True))


@effort(200)
@given(SHARDS, NODES)
def test_a_node_that_comes_gets_its_part_and_nothing_else_moves(shards: int, nodes: set[str]) -> None:
    before = placement([None] * shards, nodes)
    after = placement(before, nodes | {"new"})
    moved = [node for was, node in zip(before, after, strict=True) if was != node]
    assert set(moved) <= {"new"}
    assert len(moved) <= -(-shards // (len(nodes) + 1))


@effort(100)
@given(stores(), st.data())
def test_a_pinned_shard_is_where_it_is_pinned_to_if_that_node_is_there(
    store: tuple[list[str | None], set[str]], data: st.DataObject
) -> None:
    owners, nodes = store
    numbers = st.integers(0, len(owners) - 1)
    pinned = data.draw(st.dictionaries(numbers, st.sampled_from([*sorted(nodes), "gone"]), max_size=5))
    placed = placement(owners, nodes, pinned)
    assert all(placed[shard] == node for shard, node in pinned.items() if node in nodes)
    assert set(placed) <= nodes


def test_the_shards_of_a_lost_node_are_spread_over_the_others() -> None:
    nodes = {"a", "b", "c", "d"}
    before = placement([None] * 64, nodes)
    after = placement(before, nodes - {"d"})
    assert {after[shard] for shard in range(64) if before[shard] == "d"} == {"a", "b", "c"}


def test_without_nodes_nothing_is_placed() -> None:
    assert placement(["a", None], set()) == [None, None]
