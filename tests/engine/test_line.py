"""A line against the simplest thing that could be right: a sorted list."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.engine.line import _CHUNK, _STALE_ALLOWED, Line
from tests.support.effort import effort

Pair = tuple[int, int]


class Sorted:
    """The model. A message stands in the line once, with the time of its last arrival."""

    def __init__(self) -> None:
        self.line = Line()
        self.times: dict[int, int] = {}  # Sequence to time, of those in the line.

    def holds(self, time: int, sequence: int) -> bool:
        return self.times.get(sequence) == time

    @property
    def pairs(self) -> list[Pair]:
        return sorted((time, sequence) for sequence, time in self.times.items())

    def add(self, time: int, sequence: int) -> None:
        self.times[sequence] = time
        self.line.add(time, sequence)

    def leave(self, sequence: int) -> None:
        self.line.leave(self.times.pop(sequence), sequence, self.holds)

    def leave_many(self, sequences: list[int]) -> None:
        leaving = sorted(sequence for sequence in sequences if self.times.pop(sequence, None) is not None)
        self.line.leave_many(leaving, self.holds)

    def check(self) -> None:
        assert self.line.live == len(self.times)
        assert self.line.first() == (self.pairs[0] if self.times else None)
        assert self.line.entries == sum(1 for _ in self.line._in_order()) + len(self.line._early)
        assert self.line.entries <= 3 * self.line.live + 2 * _STALE_ALLOWED


class LineMachine(RuleBasedStateMachine):
    """Times from a small range, so that ties, returns and arrivals out of order are common."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Sorted()
        self.next_sequence = 1

    @initialize(times=st.lists(st.integers(0, 30), max_size=20))
    def fill(self, times: list[int]) -> None:
        sequences = list(range(1, len(times) + 1))
        self.model.line.extend(np.array(times, dtype=np.int64), np.array(sequences, dtype=np.int64))
        self.model.times = dict(zip(sequences, times, strict=True))
        self.next_sequence = len(times) + 1

    @rule(time=st.integers(0, 60))
    def arrive(self, time: int) -> None:
        self.model.add(time, self.next_sequence)
        self.next_sequence += 1

    @rule(data=st.data(), time=st.integers(0, 60))
    def return_with_any_time(self, data: st.DataObject, time: int) -> None:
        absent = [sequence for sequence in range(1, self.next_sequence) if sequence not in self.model.times]
        if absent:
            self.model.add(time, data.draw(st.sampled_from(absent)))

    @rule(data=st.data())
    def leave_from_anywhere(self, data: st.DataObject) -> None:
        if self.model.times:
            self.model.leave(data.draw(st.sampled_from(sorted(self.model.times))))

    @rule(data=st.data())
    def leave_together(self, data: st.DataObject) -> None:
        self.model.leave_many(data.draw(st.lists(st.sampled_from(sorted(self.model.times) or [0]), unique=True)))

    @rule(count=st.integers(0, 30))
    def leave_from_the_head(self, count: int) -> None:
        self.model.leave_many([sequence for _, sequence in self.model.pairs[:count]])

    @rule(count=st.integers(0, 30))
    def run_at_the_head(self, count: int) -> None:
        run = self.model.line.head_run(count).tolist()
        assert len(run) <= count
        assert [sequence for _, sequence in run] == list(range(run[0][1], run[0][1] + len(run))) if run else True
        in_order = [list(pair) for pair in self.model.line._in_order()]
        assert run == in_order[: len(run)]
        if not run:
            assert not count or self.model.line._early or not self.model.times

    @rule(count=st.integers(0, 8), until=st.none() | st.integers(0, 60))
    def peek(self, count: int, until: int | None) -> None:
        if until is None:
            assert self.model.line.peek(count, self.model.holds) == self.model.pairs[:count]
        else:
            wanted = [pair for pair in self.model.pairs if pair[0] <= until][:count]
            assert self.model.line.peek(count, self.model.holds, until) == wanted

    @invariant()
    def agree(self) -> None:
        self.model.check()


LineMachine.TestCase.settings = effort(60, steps=80)
test_a_line_behaves_like_a_sorted_list = LineMachine.TestCase


@effort(30)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10_000)), unique_by=lambda pair: pair[1], max_size=60))
def test_extending_gives_the_line_that_adding_gives(pairs: list[Pair]) -> None:
    extended = Line()
    extended.extend(
        np.array([time for time, _ in pairs], dtype=np.int64),
        np.array([number for _, number in pairs], dtype=np.int64),
    )
    assert extended.peek(len(pairs), lambda *_: True) == sorted(pairs)
    assert (extended.entries, extended.live) == (len(pairs), len(pairs))


def test_a_line_of_many_chunks_is_popped_in_order() -> None:
    count = 3 * _CHUNK
    model = Sorted()
    for sequence in range(count):
        model.add(sequence // 3, sequence)
    popped = []
    while model.times:
        head = model.line.first()
        assert head is not None
        popped.append(head)
        model.leave(head[1])
    assert popped == sorted(popped)
    assert len(popped) == count
    assert model.line.entries == 0


@pytest.mark.parametrize("shape", ["in order", "out of order", "mixed"])
@pytest.mark.parametrize("kept", [0, 1, 500, 5000])
def test_memory_is_bounded_by_the_living_whatever_leaves_from_the_middle(shape: str, kept: int) -> None:
    """The first `kept` stay and hold the head; a hundred thousand pass behind them."""
    model = Sorted()
    backwards = {"in order": 0, "out of order": 1, "mixed": 2}[shape]
    for sequence in range(kept):
        model.add(0, sequence)
    worst = 0
    for sequence in range(kept, kept + 100_000):
        early = backwards == 1 or (backwards == 2 and sequence % 2)
        model.add(1_000_000 - sequence if early else 1_000_000 + sequence, sequence)
        if sequence - 3 >= kept:
            model.leave(sequence - 3)
        worst = max(worst, model.line.entries)
    assert worst <= 3 * (kept + 4) + 2 * _STALE_ALLOWED
    assert model.line.peek(kept + 10, model.holds) == model.pairs


def test_random_leases_of_very_different_lengths_leave_no_pile_behind() -> None:
    model = Sorted()
    state = 1
    for sequence in range(60_000):
        state = state * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        model.add(sequence + (state >> 40) % 50_000, sequence)
        if len(model.times) > 300:
            model.leave(sorted(model.times)[(state >> 33) % 300])
        if sequence % 5000 == 0:
            model.check()
    model.check()


def test_a_message_that_returns_with_its_old_time_is_seen_once() -> None:
    """Leased until 10, given back, leased again until 10: the stale entry holds again."""
    model = Sorted()
    model.add(5, 1)  # Keeps the head, so that nothing is trimmed.
    model.add(10, 2)
    model.leave(2)
    model.add(10, 2)
    assert model.line.peek(5, model.holds) == [(5, 1), (10, 2)]
    model.leave(2)
    model.leave(1)
    assert (model.line.entries, model.line.first()) == (0, None)


def test_peeking_at_a_few_does_not_look_at_the_rest() -> None:
    line = Line()
    for sequence in range(5000):
        line.add(sequence, sequence)
        line.add(0, 10_000 + sequence)  # Goes to the heap.
    asked: list[Pair] = []

    def holds(time: int, sequence: int) -> bool:
        asked.append((time, sequence))
        return True

    assert line.peek(3, holds) == [(0, 0), (0, 10_000), (0, 10_001)]
    assert len(asked) <= 4
    asked.clear()
    assert line.peek(2000, holds, until=-1) == []
    assert not asked
