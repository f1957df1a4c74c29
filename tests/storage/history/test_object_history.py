"""Object History on the disk: what is noted is known at once, written behind, and never lost or counted twice."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import lmdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.engine.history import MemoryHistory, content_digest, note_run
from penstock.errors import HistoryError, Reason
from penstock.limits import HISTORY_UNWRITTEN_MAX, VERSIONS_SHOWN_MAX
from penstock.model.values import KeyedRun, Version
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import PACKED, Changes, Unwritten, name_of
from penstock.storage.history.writer import HistoryWriter


class Noter:
    """Notes versions as an engine does: a log of (object, key, content), each at a position of its own."""

    def __init__(self, path: Path, log: list[tuple[str, bytes, bytes]] | None = None) -> None:
        self.path = path
        self.log = log if log is not None else []
        self.history = ObjectHistory(path)

    def publish(self, about: str, key: bytes, content: bytes) -> bool:
        """Is it a new version?"""
        self.log.append((about, key, content))
        return self._apply(len(self.log))

    def _apply(self, number: int) -> bool:
        noted = self.history.noted
        about, key, content = self.log[number - 1]
        digest = content_digest(content)
        note_run(self.history, KeyedRun(about, [key], [digest], 1, number, number * 1000, [number * 10]))
        return self.history.noted > noted

    def settle(self) -> None:
        self.history.settle(0)

    def again(self, snapshot: tuple[int, list[bytes]] = (0, [])) -> Noter:
        """What the next process finds: the disk, the snapshot, and the log after it."""
        self.history.close()
        fresh = Noter(self.path, self.log)
        for facts in snapshot[1]:
            fresh.history.restore(facts)
        for number in range(snapshot[0] + 1, len(self.log) + 1):
            fresh._apply(number)
        return fresh

    def snapshot(self) -> tuple[int, list[bytes]]:
        return len(self.log), [facts for _, facts, _ in self.history.sections()]

    def known(self, about: str, key: bytes) -> tuple[int, int]:
        """The message of the newest version, and how many versions there were."""
        version = self.history.get(about, key)
        assert version is not None
        return version.sequence, version.versions


@pytest.fixture
def noter(tmp_path: Path) -> Iterator[Noter]:
    noter = Noter(tmp_path / "history")
    yield noter
    noter.history.close()


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


# ── What the disk must have ───────────────────────────────────────────────────────────────────────────────────


def test_a_history_behind_its_snapshot_is_refused(noter: Noter) -> None:
    noter.publish("customer", b"1", b"a")
    noter.settle()
    noter.publish("customer", b"1", b"b")
    with pytest.raises(HistoryError, match="ends at position 11, but the snapshot says that it reached 21"):
        noter.again(noter.snapshot())


def test_a_missing_history_is_refused(noter: Noter) -> None:
    noter.publish("customer", b"1", b"a")
    with pytest.raises(HistoryError, match="is missing"):
        noter.again(noter.snapshot())


def test_a_history_that_was_cut_off_is_refused(noter: Noter) -> None:
    for number in range(2000):
        noter.publish("customer", b"%d" % number, b"a")
    noter.settle()
    noter.history.close()
    os.truncate(noter.path / "data.mdb", 50_000)
    with pytest.raises(HistoryError, match="has 50000 bytes, expected"):
        ObjectHistory(noter.path)


def test_garbage_is_refused(noter: Noter) -> None:
    noter.path.mkdir()
    (noter.path / "data.mdb").write_bytes(os.urandom(1 << 16))
    with pytest.raises(HistoryError):
        ObjectHistory(noter.path)


@pytest.mark.parametrize("table", [b"current", b"replaced"])
def test_an_entry_with_a_flipped_bit_is_not_believed(noter: Noter, table: bytes) -> None:
    for content in (b"a", b"b", b"c"):
        noter.publish("customer", b"1", content)
    noter.settle()
    noter.history.close()
    with lmdb.open(str(noter.path), max_dbs=3) as environment:
        damaged = environment.open_db(table)
        with environment.begin(damaged, write=True) as transaction, transaction.cursor() as cursor:
            assert cursor.first()
            data = bytearray(cursor.value())
            data[0] ^= 1
            transaction.put(cursor.key(), bytes(data))
    again = ObjectHistory(noter.path)
    with pytest.raises(HistoryError, match="damaged"):
        again.versions("customer", b"1", 10)
    again.close()


ABOUT = st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1, max_size=80)


@given(st.lists(st.tuples(ABOUT, st.binary(min_size=1, max_size=300)), unique=True))
@example([("a", b"b" * 61), ("a", b"b" * 62), ("a", b"b" * 63), ("a", b"b" * 62 + b"c"), ("a" * 70, b"b")])
def test_no_two_keys_have_the_same_name(keys: list[tuple[str, bytes]]) -> None:
    names = [name_of(*key) for key in keys]
    assert len(set(names)) == len(names)
    assert max(map(len, names), default=0) <= 511, "or LMDB does not take it"


def test_keys_of_any_length_are_told_apart_on_the_disk(noter: Noter) -> None:
    keys = [b"k" * size for size in (1, 10, 54, 55, 56, 57, 300, 1024)]
    for at, key in enumerate(keys):
        noter.publish("customer", key, b"%d" % at)
    noter.settle()
    again = noter.again(noter.snapshot())
    for at, key in enumerate(keys, start=1):
        assert again.known("customer", key) == (at, 1)
    compared = again.history.compare("customer", [*keys, b"new"], [content_digest(b"3")] * 9)
    assert compared.places == [(1, 4) if at == 3 else None for at in range(9)]
    assert compared.unknown == 1
    again.history.close()


# ── Bounds ────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── The process that writes ───────────────────────────────────────────────────────────────────────────────────


def test_a_writer_that_was_killed_is_replaced_and_nothing_is_lost(noter: Noter) -> None:
    noter.publish("customer", b"1", b"a")
    noter.settle()
    process = noter.history._writer._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    noter.publish("customer", b"1", b"b")
    noter.history.cut(0)
    with pytest.raises(HistoryError, match="cannot be written"):
        noter.history.write()
    assert noter.known("customer", b"1") == (2, 2)
    noter.history.write()
    noter.history.written()
    assert noter.known("customer", b"1") == (2, 2)


def test_a_writer_that_outlived_its_broker_changes_nothing_that_is_newer(tmp_path: Path) -> None:
    """Killed with a batch handed over: the next broker may be first to write what that batch says, and more."""
    path = tmp_path / "history"
    writer = HistoryWriter(path)
    name = name_of("customer", b"1")

    def change(base: int, reached: int, versions: int) -> Changes:
        noted = Unwritten()
        noted.put(name, PACKED.pack(*Version(b"", 1, versions, versions, 0, reached - 5)))
        return Changes.of(base, reached, 0, noted)

    writer.write(change(0, 10, 1))
    writer.write(change(10, 40, 4))  # The next broker.
    writer.write(change(10, 20, 2))  # What was left of the last one.
    stored = StoredVersions(path)
    assert stored.reached == 40
    assert [version.versions for _, version in stored.entries()] == [4]
    stored.close()
    with pytest.raises(HistoryError, match="ends at position 40, not at 50"):
        writer.write(change(50, 60, 5))
    writer.close()


def test_a_batch_that_begins_before_what_is_written_adds_what_is_not(noter: Noter) -> None:
    """As after a broker that was killed, whose writer finished while the next one replayed the same log."""
    for number in range(50):
        noter.publish("customer", b"1", b"%d" % number)
    left = changes_of(noter.history)
    successor = Noter(noter.path, list(noter.log))  # Nothing is written yet.
    for number in range(1, 51):
        successor._apply(number)
    for number in range(50):
        successor.publish("customer", b"1", b"%d and more" % number)
    writer = HistoryWriter(noter.path)
    writer.write(left)
    writer.close()
    successor.settle()
    versions = [version.sequence for version in successor.history.versions("customer", b"1", 200)]
    assert versions == list(range(100, 0, -1))
    successor.history.close()


class Interrupted(StoredVersions):
    """A writer that pauses before one of its transactions."""

    before_transaction = 0
    meanwhile: Callable[[], None]

    def bound_memory(self) -> None:
        super().bound_memory()
        self.before_transaction -= 1
        if self.before_transaction == 0:
            self.meanwhile()


def interrupted(path: Path, before_transaction: int, meanwhile: Callable[[], None]) -> Interrupted:
    writer = Interrupted(path, writable=True)
    writer.before_transaction, writer.meanwhile = before_transaction, meanwhile
    return writer


def changes_of(history: ObjectHistory) -> Changes:
    """What is to be written next."""
    history.cut(0)
    assert history._cut is not None
    return Changes.of(*history._cut)


@pytest.mark.parametrize("before_transaction", [1, 2, 3])
def test_a_batch_that_was_half_written_costs_nothing(
    noter: Noter, before_transaction: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.history.stored.HISTORY_TRANSACTION_KEYS", 2)
    keys = [b"%d" % number for number in range(5)]
    for content in (b"a", b"b"):
        for key in keys:
            noter.publish("customer", key, content)
    noter.settle()
    snapshot = noter.snapshot()
    for content in (b"a", b"b", b"c"):
        for key in (*keys, b"new"):
            noter.publish("customer", key, content)

    def end() -> None:
        raise KeyboardInterrupt

    changes = changes_of(noter.history)
    noter.history.close()
    writer = interrupted(noter.path, before_transaction, end)
    with pytest.raises(KeyboardInterrupt):
        writer.write(changes)
    writer.close()
    again = noter.again(snapshot)
    assert [again.known("customer", key) for key in keys] == [(23 + at, 5) for at in range(5)]
    assert again.known("customer", b"new") == (28, 3)
    again.settle()
    assert again.history.keys == 6
    for key in (*keys, b"new"):
        shown = [version.sequence for version in again.history.versions("customer", key, 10)]
        at = 5 if key == b"new" else int(key)
        assert shown == [23 + at, 17 + at, 11 + at, *([] if key == b"new" else [6 + at, 1 + at])]
    again.history.close()


def test_a_writer_that_outlived_its_broker_stops_when_another_one_writes(
    noter: Noter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.storage.history.stored.HISTORY_TRANSACTION_KEYS", 2)
    for key in range(6):
        noter.publish("customer", b"%d" % key, b"a")
    noter.settle()
    for key in range(6):
        noter.publish("customer", b"%d" % key, b"b")
    left = changes_of(noter.history)
    for key in range(6):
        noter.publish("customer", b"%d" % key, b"c")
    history = noter.history
    assert history._cut is not None
    unwritten = Changes.of(left.base, history.noted, 0, history._unwritten)
    all_of_it = unwritten._replace(replaced=left.replaced + unwritten.replaced)
    history.close()
    successor = HistoryWriter(noter.path)
    writer = interrupted(noter.path, 2, lambda: successor.write(all_of_it))
    with pytest.raises(HistoryError, match="is written by another process"):
        writer.write(left)
    writer.close()
    successor.close()
    again = noter.again((18, []))
    assert [again.known("customer", b"%d" % key) for key in range(6)] == [(13 + key, 3) for key in range(6)]
    again.history.close()
