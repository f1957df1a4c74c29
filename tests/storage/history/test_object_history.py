"""Object History on the disk: what is noted is known at once, written later, and never lost or counted twice."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.history import MemoryHistory, content_digest, note_run
from penstock.errors import Reason
from penstock.limits import HISTORY_UNWRITTEN_MAX, VERSIONS_SHOWN_MAX
from penstock.model.values import KeyedRun, Version
from penstock.storage.history.object_history import ObjectHistory
from tests.support.noter import Noter


def test_what_was_noted_is_known_before_and_after_it_is_written(noter: Noter) -> None:
    assert noter.publish("customer", b"1", b"a")
    assert not noter.publish("customer", b"1", b"a")
    assert noter.publish("customer", b"1", b"b")
    assert noter.known("customer", b"1") == (3, 2)
    noter.settle()
    assert noter.known("customer", b"1") == (3, 2)
    assert not noter.publish("customer", b"1", b"b")
    assert noter.history.get("customer", b"2") is None
    assert noter.history.get("custome", b"r1") is None


def test_a_history_that_was_never_used_leaves_nothing_on_the_disk(noter: Noter) -> None:
    assert noter.history.get("customer", b"1") is None
    assert list(noter.history.sections()) == []
    noter.history.close()
    assert not noter.path.exists()


def test_a_version_that_is_replayed_is_not_counted_twice(noter: Noter) -> None:
    for content in (b"a", b"b", b"a"):
        noter.publish("customer", b"1", content)
    noter.settle()
    again = noter.again()  # Without a snapshot: the whole log is replayed on top of what is written.
    assert again.known("customer", b"1") == (3, 3)
    assert [version.sequence for version in again.history.versions("customer", b"1", 10)] == [3, 2, 1]
    again.history.close()


def test_what_was_not_written_is_replayed_from_the_snapshot(noter: Noter) -> None:
    noter.publish("customer", b"1", b"a")
    noter.settle()
    snapshot = noter.snapshot()
    noter.publish("customer", b"1", b"b")
    noter.publish("customer", b"2", b"c")
    again = noter.again(snapshot)
    assert again.known("customer", b"1") == (2, 2)
    assert again.known("customer", b"2") == (3, 1)
    again.history.close()


@given(data=st.data())
@settings(max_examples=15)
def test_crashes_at_any_moment_change_nothing(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Publishes, writes, snapshots and crashes in any order, against a plain dictionary."""
    noter = Noter(tmp_path_factory.mktemp("any") / "history")
    snapshot: tuple[int, list[bytes]] = (0, [])
    expected: dict[bytes, list[tuple[bytes, int]]] = {}
    steps = st.sampled_from(["publish"] * 6 + ["settle", "snapshot", "crash"])
    try:
        for step in data.draw(st.lists(steps, max_size=40)):
            if step == "publish":
                key, content = data.draw(st.sampled_from([b"1", b"2"])), data.draw(st.sampled_from([b"a", b"b"]))
                versions = expected.setdefault(key, [])
                changed = not versions or versions[-1][0] != content
                assert noter.publish("object", key, content) == changed
                if changed:
                    versions.append((content, len(noter.log)))
            elif step == "settle":
                noter.settle()
            elif step == "snapshot":
                noter.settle()  # A snapshot counts only when the history has reached it.
                snapshot = noter.snapshot()
            else:
                noter = noter.again(snapshot)
        for key, versions in expected.items():
            assert noter.known("object", key) == (versions[-1][1], len(versions))
            shown = [version.sequence for version in noter.history.versions("object", key, VERSIONS_SHOWN_MAX)]
            assert shown == [sequence for _, sequence in reversed(versions)]
    finally:
        noter.history.close()  # Also when no more can be drawn.


RUN = st.lists(
    st.tuples(st.integers(0, 30).map(b"%d".__mod__), st.sampled_from([b"a", b"b", b"c"])), min_size=1, max_size=30
)
FRESH = st.integers(0, 3).map(lambda turn: [(b"%d" % (30 * turn + number), b"a") for number in range(30)])


@given(
    runs=st.lists(
        st.tuples(st.one_of(RUN, FRESH), st.booleans(), st.sampled_from(["", "cut", "settle"])), max_size=12
    )
)
@settings(max_examples=40)
def test_runs_are_noted_as_their_messages(
    runs: list[tuple[list[tuple[bytes, bytes]], bool, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Against a history in memory; with what was read to compare them, and without."""
    history, expected = ObjectHistory(tmp_path_factory.mktemp("runs") / "history"), MemoryHistory()
    position = 0
    try:
        for run, compares, then in runs:
            keys, digests = [key for key, _ in run], [content_digest(content) for _, content in run]
            places = [*range(position, position + 10 * len(run), 10)]
            position = places[-1] + 10
            facts = (1, places[0] + 1, 1000 + position, places)
            compared = history.compare("thing", keys, digests)
            assert compared[:2] == expected.compare("thing", keys, digests)[:2]
            note_run(history, KeyedRun("thing", keys, digests, *facts, compared.seen if compares else ()))
            note_run(expected, KeyedRun("thing", keys, digests, *facts))
            for key in dict.fromkeys(keys):
                assert history.versions("thing", key, 10) == expected.versions("thing", key, 10)
            if then == "settle" and not history.is_cut:
                history.settle(0)
            elif then == "cut" and not history.is_cut:
                history.cut(0)
        assert history.keys == len({key for run, _, _ in runs for key, _ in run})
    finally:
        history.close()


def test_versions_of_a_key_are_shown_newest_first_and_only_those_in_the_log(noter: Noter) -> None:
    for number in range(150):
        noter.publish("customer", b"1", b"%d" % number)
        if number in (50, 100):
            noter.settle()
    history = noter.history
    assert [version.versions for version in history.versions("customer", b"1", 100)] == list(range(150, 50, -1))
    history.holds = lambda position: position > 1000 or position == 10  # There is a hole in the log.
    assert [version.versions for version in history.versions("customer", b"1", 100)] == [*range(150, 100, -1), 1]
    assert [version.versions for version in history.versions("customer", b"1", 2)] == [150, 149]
    assert history.versions("customer", b"2", 2) == []


def test_what_was_replaced_goes_when_the_log_no_longer_has_it(noter: Noter) -> None:
    for number in range(1, 201):
        noter.publish("customer", b"1", b"%d" % number)
    everything = [version.sequence for version in noter.history.versions("customer", b"1", 300)]
    assert everything == list(range(200, 0, -1))
    noter.history.settle(1500)
    left = [version.sequence for version in noter.history.versions("customer", b"1", 300)]
    assert left == list(range(200, left[-1] - 1, -1))
    assert 100 < left[-1] < 150, "in blocks, as soon as the log has nothing of one"
    assert noter.known("customer", b"1") == (200, 200)


def test_a_new_key_is_refused_when_there_are_too_many_and_a_known_one_is_not(tmp_path: Path) -> None:
    history = ObjectHistory(tmp_path / "history", keys_max=2)
    for number in (1, 2):
        assert history.refusal(1) is None
        history.put("customer", b"%d" % number, Version(b"", 1, number, 1, number, number * 10))
        history.settle(0)
    assert history.keys == 2
    assert history.refusal(1) is Reason.TOO_MANY_KEYS
    assert history.refusal(0) is None
    history.close()


def test_versions_that_cannot_be_written_do_not_pile_up(noter: Noter) -> None:
    numbers = count(1)
    while noter.history.refusal(1) is None:
        noter.publish("customer", b"%d" % next(numbers), b"a")
    assert noter.history.refusal(0) is Reason.HISTORY_BEHIND
    assert len(noter.log) == HISTORY_UNWRITTEN_MAX
    noter.settle()
    assert noter.history.refusal(1) is None
    assert noter.history.keys == HISTORY_UNWRITTEN_MAX
