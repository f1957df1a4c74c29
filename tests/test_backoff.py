"""Waits between attempts: how long they are, and that those who failed together come back apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.backoff import backoff_ns
from penstock.limits import SECOND_NS

FIRST_NS, LONGEST_NS = SECOND_NS, 60 * SECOND_NS
chances = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 1 << 31), st.integers(1, 1 << 40), st.integers(1, 1 << 50), chances)
def test_a_wait_is_never_longer_than_the_longest_nor_shorter_than_half_of_what_is_due(
    attempt: int, first_ns: int, longest_ns: int, chance: float
) -> None:
    whole = min(first_ns * 2 ** min(attempt - 1, 60), longest_ns)
    assert whole / 2 <= backoff_ns(attempt, first_ns, longest_ns, chance) <= whole


@given(st.integers(1, 100), chances)
def test_the_next_wait_is_longer_or_the_longest(attempt: int, chance: float) -> None:
    wait, following = (backoff_ns(number, FIRST_NS, LONGEST_NS, chance) for number in (attempt, attempt + 1))
    assert following > wait or following == backoff_ns(1000, FIRST_NS, LONGEST_NS, chance)


def test_those_who_fail_together_come_back_apart() -> None:
    assert len({backoff_ns(3, FIRST_NS, LONGEST_NS, number / 100) for number in range(100)}) == 100
