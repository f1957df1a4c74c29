"""The process that writes the Object History: killed, outlived or overtaken, it loses nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import HistoryError
from penstock.model.values import Version
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import PACKED, Changes, Unwritten, name_of
from penstock.storage.history.writer import HistoryWriter
from tests.support.noter import Noter


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
