"""The index of topics against a plain dictionary: whatever comes and goes, it finds the same, and it stays small."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.engine.names import Names
from penstock.engine.topics import TopicIndex, TopicNames, has_topic
from tests.support.effort import effort

STALE_ALLOWED = 1024  # And as many more as there are messages.
numbers = st.integers(1, 5)


class TopicMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.index = TopicIndex()
        self.living: dict[int, int] = {}  # Sequence to number.
        self.last = 0

    @rule(number=numbers, count=st.sampled_from([1, 1, 3, 300, 700]))
    def add(self, number: int, count: int) -> None:
        sequences = range(self.last + 1, self.last + 1 + count)
        if count == 1:
            self.index.add(number, sequences[0])
        else:
            self.index.add_all(number, array("q", sequences))
        self.living |= dict.fromkeys(sequences, number)
        self.last += count

    @rule(step=st.integers(1, 4), start=st.integers(0, 400))
    def remove(self, step: int, start: int) -> None:
        for sequence in list(self.living)[start::step]:
            del self.living[sequence]
            self.index.trim(len(self.living), self.living.__contains__)

    @rule(chosen=st.sets(numbers), after=st.integers(0, 3000), count=st.integers(1, 400))
    def look(self, chosen: set[int], after: int, count: int) -> None:
        found: list[int] = []
        while len(found) < count and len(some := self.index.following(chosen, after, count)):
            assert len(some) <= count
            found += [sequence for sequence in some.tolist() if sequence in self.living]
            after, before = int(some[-1]), after
            assert after > before
        expected = [each for each, number in self.living.items() if number in chosen]
        first = found[0] if found else 0
        assert found[:count] == [each for each in expected if each >= first and found][:count]

    @invariant()
    def everything_is_found(self) -> None:
        for number in range(1, 6):
            found = self.index.following([number], 0, self.last + 1).tolist()
            assert [each for each in found if each in self.living] == [
                each for each, its in self.living.items() if its == number
            ]

    @invariant()
    def it_stays_small(self) -> None:
        held = sum(len(self.index.following([number], 0, self.last + 1)) for number in range(1, 6))
        assert self.index.entries == held <= 2 * len(self.living) + STALE_ALLOWED + 128 + 256 + 1024


TopicMachine.TestCase.settings = effort(40, steps=30)
test_the_index_finds_what_a_dictionary_finds = TopicMachine.TestCase


def named(*topics: str) -> TopicNames:
    names = Names()
    for number, text in enumerate(topics, start=1):
        names.define(number, text)
    return TopicNames(names)


TOPICS = ("fruit.sweet", "fruit.sour\nfood.healthy", "fruit", "fruits", "food", "fruit.sweet\nfruit.sour", "früh")


@pytest.mark.parametrize("pattern", ["fruit.*", "fruit*", "fruit", "food", "food.*", "*", "none", "none.*", "frü*"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_pattern_matches_names_and_beginnings_of_names(pattern: str, at_once: bool) -> None:
    topics = named(*TOPICS)
    if at_once:
        topics.note_all(range(1, len(TOPICS) + 1))
    else:
        for number in (3, 7, 1, 2, 6, 5, 4, 4, 1):
            topics.note(number)
    expected = [n for n, text in enumerate(TOPICS, start=1) if has_topic(text.split("\n"), pattern)]
    assert topics.matching(pattern, 10) == expected


def test_too_many_matches_are_not_listed() -> None:
    topics = named(*[f"a.{number}" for number in range(100)])
    topics.note_all(range(1, 101))
    assert topics.matching("a.*", 99) is None
    assert topics.matching("a.*", 100) == list(range(1, 101))
