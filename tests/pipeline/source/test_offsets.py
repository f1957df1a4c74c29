"""Offsets of several shards: nothing is read twice or left out, however limits and tasks divide it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import EventsLostError
from penstock.pipeline.source.log import Extent
from penstock.pipeline.source.offsets import Piece, divided, level, limited, offset_at, offsets_of

SIZES = st.lists(st.integers(0, 200), min_size=1, max_size=6)
LIMITS = st.integers(1, 400)


def extent(shard: int, end: int, *ancestors: tuple[str, int], shards: int = 2) -> Extent:
    return Extent(f"log-{shard}", shard, 0, end, 100 * end, ancestors, shards)


@given(SIZES, LIMITS)
def test_a_level_is_the_highest_that_keeps_the_limit(sizes: list[int], limit: int) -> None:
    def taken(each: int) -> int:
        return sum(min(size, each) for size in sizes)

    found = level(sizes, limit)
    assert taken(found) <= limit
    assert taken(found) == sum(sizes) or taken(found + 1) > limit


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), min_size=1, max_size=6), LIMITS)
def test_batches_within_a_limit_read_every_offset_once(ranges: list[tuple[int, int]], limit: int) -> None:
    starts = [start for start, _ in ranges]
    ends = [start + size for start, size in ranges]
    reached = starts
    for _ in range(sum(size for _, size in ranges)):
        following = limited(reached, ends, limit)
        assert all(before <= after <= end for before, after, end in zip(reached, following, ends, strict=True))
        assert sum(following) - sum(reached) <= limit
        assert following != reached or reached == ends
        reached = following
    assert reached == ends


@given(SIZES.filter(any), st.integers(1, 9), st.integers(1, 5))
def test_tasks_have_every_offset_once(counts: list[int], tasks: int, bytes_each: int) -> None:
    ranges = [Piece(shard, 7, 7 + count) for shard, count in enumerate(counts) if count]
    sizes = [(piece.end - piece.start) * bytes_each for piece in ranges]
    parts = divided(ranges, sizes, tasks)
    assert 1 <= len(parts) <= tasks
    read = sorted((piece.shard, offset) for part in parts for piece in part for offset in range(*piece[1:]))
    assert read == [(piece.shard, offset) for piece in ranges for offset in range(piece.start, piece.end)]
    largest = max(sum(piece.end - piece.start for piece in part) for part in parts)
    assert largest <= sum(counts) / tasks + len(counts)


def test_a_checkpoint_has_an_offset_for_each_shard() -> None:
    both = [extent(0, 10), extent(1, 20)]
    assert offset_at([3, 4], both) == {"0": 3, "1": 4}
    assert offsets_of({"0": 3, "1": 4}, both) == [3, 4]
    assert offsets_of({"0": 3}, [extent(0, 10, shards=1)]) == [3]
    with pytest.raises(EventsLostError, match="has no offset of shard 1: it belongs to another log"):
        offsets_of({"0": 3}, both)
    with pytest.raises(EventsLostError, match="belongs to shard 1 of another log: this one has 1"):
        offsets_of({"0": 3, "1": 4}, [extent(0, 10, shards=1)])


def test_a_checkpoint_of_one_shard_goes_on_in_the_shards_that_were_made_from_it() -> None:
    """Shard 0 has the past of all."""
    both = [extent(shard, 200, ("before", 100)) for shard in range(2)]
    assert offsets_of({"0": 30}, both) == offsets_of({"0": 30, "log": "before"}, both) == [30, 100]
    written = offset_at([30, 100], both)
    assert written == {"0": 30, "1": 100, "log": "log-0", "log 1": "log-1"}
    assert offsets_of(written, both) == [30, 100]
    assert offsets_of(written | {"1": 150}, both) == [30, 150]
    with pytest.raises(EventsLostError, match=r"ends at offset 100, but the checkpoint has read up to 130"):
        offsets_of({"0": 130}, both)
    with pytest.raises(EventsLostError, match="belongs to another log"):
        offsets_of({"0": 30}, [extent(0, 200, ("before", 100)), extent(1, 200)])
