"""From topics to queues and channels."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.routing import Routing, roots
from penstock.limits import ROUTES_CACHED_MAX
from tests.support.effort import effort

topics = st.text("ab.", min_size=1, max_size=4)
patterns = st.lists(topics | st.builds(lambda text: text + "*", st.text("ab.", max_size=3)), max_size=3).map(tuple)


@pytest.mark.parametrize(
    ("given", "about", "expected"),
    [
        (("fruit.sweet", "food.healthy", "fruit.red"), "apple", ("fruit", "food")),
        (("fruit",), "", ("fruit",)),
        (("a.b.c",), "", ("a",)),
        ((), "apple", ("apple",)),
        ((), "", ("default",)),
    ],
)
def test_the_root_of_a_topic_names_a_queue(given: tuple[str, ...], about: str, expected: tuple[str, ...]) -> None:
    assert roots(given, about) == expected


@effort(200)
@given(
    st.lists(st.tuples(st.integers(1, 5), patterns), max_size=12),
    st.lists(st.lists(topics, max_size=3).map(tuple), min_size=1, max_size=5),
)
def test_channels_are_found_as_by_comparing_all_patterns(
    changes: list[tuple[int, tuple[str, ...]]], asked: list[tuple[str, ...]]
) -> None:
    routing, plain = Routing(), dict[int, tuple[str, ...]]()
    for queue, wanted in changes:
        routing.assign(queue, wanted)
        plain[queue] = wanted
        for each in asked:
            expected = [
                number
                for number in sorted(plain)
                if any(fnmatchcase(topic, pattern) for topic in each for pattern in plain[number])
            ]
            assert list(routing.channels(each)) == expected
    assert routing.all_channels() == sorted(queue for queue, wanted in plain.items() if wanted)
    for queue in plain:
        routing.remove(queue)
    assert [routing.channels(each) for each in asked] == [()] * len(asked)


def test_what_is_remembered_has_a_bound() -> None:
    routing = Routing()
    routing.assign(1, ("a*",))
    for number in range(ROUTES_CACHED_MAX + 10):
        assert routing.channels((f"a{number}",)) == (1,)
        assert len(routing._known) <= ROUTES_CACHED_MAX
