"""A backup of a directory: it is consistent, only what is new is copied, and what is there survives a failure."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.errors import BackupError, InUseError
from penstock.model.events import NameDefined
from penstock.storage.backup.making import make_backup
from penstock.storage.backup.manifest import MANIFEST, contents_of
from penstock.storage.backup.restoring import restore_backup, verify_backup
from penstock.storage.backup.source import DirectorySource, StoreSource
from penstock.storage.directory import take_lock
from penstock.storage.shards import read_shards, shard_directory
from tests.support.backups import Worked, living, source_of, worked
from tests.support.two_shards import make_two_shards


def bodies(first: int, last: int) -> list[str]:
    return [f"message {number}" for number in range(first, last + 1)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with worked(tmp_path / "data") as directory:
        directory.create("orders", "jobs")
        directory.publish("orders", *bodies(1, 20))
        directory.finish("orders", 5)
        directory.snapshot()
        directory.publish("orders", *bodies(21, 30))
    return tmp_path / "data"


def test_a_restored_directory_has_the_same_messages(data: Path, tmp_path: Path) -> None:
    with source_of(data) as source:
        made = make_backup(tmp_path / "backup", StoreSource([source]))
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    with worked(data) as original, worked(tmp_path / "restored") as restored:
        assert restored.log.end == original.log.end
        assert restored.log.end.offset == made.contents.shards[0].state.offset
        assert living(restored.engine, "orders") == living(original.engine, "orders") == list(range(6, 31))


def test_a_second_backup_copies_only_what_is_new(data: Path, tmp_path: Path) -> None:
    with source_of(data) as source:
        first = make_backup(tmp_path / "backup", StoreSource([source]))
    with source_of(data) as source:
        again = make_backup(tmp_path / "backup", StoreSource([source]))
    assert (again.copied_bytes, again.reused_bytes) == (
        0,
        first.copied_bytes + 64 * len(first.contents.shards[0].state.parts),
    )
    with worked(data) as directory:
        before = directory.log.end.position
        directory.publish("jobs", *bodies(1, 9))
        grown = directory.log.end.position - before
    with source_of(data) as source:
        assert make_backup(tmp_path / "backup", StoreSource([source])).copied_bytes == grown
    assert verify_backup(tmp_path / "backup") == []


def test_segments_that_the_broker_removed_leave_the_backup_too(data: Path, tmp_path: Path) -> None:
    with source_of(data) as source:
        make_backup(tmp_path / "backup", StoreSource([source]))
    with worked(data) as directory:
        directory.finish("orders", 20)
        directory.snapshot()
        directory.log.remove(directory.log.segments[0])
    with source_of(data) as source:
        make_backup(tmp_path / "backup", StoreSource([source]))
    kept = {path.name for path in (tmp_path / "backup" / "log").iterdir()}
    assert kept == {path.name for path in (data / "log").iterdir()}
    assert verify_backup(tmp_path / "backup") == []


class CutOff(DirectorySource):
    """A source that fails in the middle of the log."""

    failure: Exception = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def log(self, start: int, end: int) -> Iterator[bytes]:
        yield from super().log(start, start + (end - start) // 2)
        raise self.failure


def test_a_backup_that_is_cut_off_leaves_the_earlier_one_usable(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    with source_of(data) as source:
        earlier = make_backup(backup, StoreSource([source])).contents
    with worked(data) as directory:
        directory.publish("jobs", *bodies(1, 40))
        directory.snapshot()
    with source_of(data) as source:
        source.__class__ = CutOff
        with pytest.raises(BackupError, match=r"the disk of .* is full .*; the earlier backup there is unchanged"):
            make_backup(backup, StoreSource([source]))
    assert contents_of(backup) == earlier
    assert verify_backup(backup) == []
    restore_backup(backup, tmp_path / "restored")
    with source_of(data) as source:
        make_backup(backup, StoreSource([source]))
    assert verify_backup(backup) == []


@contextmanager
def sources_of(store: Path) -> Iterator[list[DirectorySource]]:
    with source_of(shard_directory(store, 0).path) as first, source_of(shard_directory(store, 1).path) as second:
        yield [first, second]


def test_a_backup_of_several_shards_that_is_cut_off_leaves_all_shards_of_the_earlier_one(tmp_path: Path) -> None:
    store, backup = make_two_shards(tmp_path / "store"), tmp_path / "backup"
    stored = read_shards(store)
    with sources_of(store) as sources:
        earlier = make_backup(backup, StoreSource(sources, stored)).contents
    defined = [NameDefined(2, 2, "text/html")]
    make_two_shards(store, defined, defined)
    with sources_of(store) as sources:
        sources[1].__class__ = CutOff
        with pytest.raises(BackupError, match="the earlier backup there is unchanged"):
            make_backup(backup, StoreSource(sources, stored))
    assert contents_of(backup) == earlier
    assert verify_backup(backup) == []
    restore_backup(backup, tmp_path / "restored")
    assert read_shards(tmp_path / "restored") == stored
    with sources_of(store) as sources:
        later = make_backup(backup, StoreSource(sources, stored)).contents
    pairs = zip(earlier.shards, later.shards, strict=True)
    assert [now.state.offset - before.state.offset for before, now in pairs] == [1, 1]


def test_two_directories_that_went_different_ways_are_told_apart(data: Path, tmp_path: Path) -> None:
    shutil.copytree(data, tmp_path / "twin")
    for path, body in ((data, "one"), (tmp_path / "twin", "two")):
        with worked(path) as directory:
            directory.publish("jobs", body)
    with source_of(data) as source:
        make_backup(tmp_path / "backup", StoreSource([source]))
    with worked(tmp_path / "twin") as directory:
        directory.publish("jobs", "three")
    with source_of(tmp_path / "twin") as source, pytest.raises(BackupError, match="is a backup of another log"):
        make_backup(tmp_path / "backup", StoreSource([source]))


def test_a_restored_log_is_another_log_with_the_same_message_ids(data: Path, tmp_path: Path) -> None:
    with source_of(data) as source:
        offset = make_backup(tmp_path / "backup", StoreSource([source])).contents.shards[0].state.offset
    restore_backup(tmp_path / "backup", tmp_path / "restored")
    with source_of(data) as original, source_of(tmp_path / "restored") as restored:
        before, after = original.state(), restored.state()
        assert after.identity.message_ids().make(1, 7) == before.identity.message_ids().make(1, 7)
        assert after.log != before.log
        assert [(each.log, each.end) for each in after.identity.ancestors] == [(before.log, offset)]
        with pytest.raises(BackupError, match="A restored broker has a new log"):
            make_backup(tmp_path / "backup", StoreSource([restored]))


def test_a_directory_with_other_files_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "letter.txt").write_text("dear")
    for wrong in (tmp_path / "notes", data):
        with source_of(data) as source, pytest.raises(BackupError, match="is not empty and not a backup"):
            make_backup(wrong, StoreSource([source]))


def test_two_backups_to_one_directory_do_not_run_together(data: Path, tmp_path: Path) -> None:
    (tmp_path / "backup").mkdir()
    child = os.fork()
    if child == 0:  # Locks are between processes.
        try:
            take_lock(tmp_path / "backup" / "lock")
            with source_of(data):
                os.kill(os.getpid(), 19)  # Stops until the parent continues it.
        finally:
            os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    try:
        directory = tmp_path / "other"
        Worked(directory).close()
        with source_of(directory) as source, pytest.raises(InUseError, match="another process backs up"):
            make_backup(tmp_path / "backup", StoreSource([source]))
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize("content", ['{"format": 3}', '{"format": 2}', '{"format": 1}', "{", ""])
def test_a_manifest_of_another_version_or_a_damaged_one_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(content)
    expected = "use the version of Penstock that made it" if "3" in content else "is damaged"
    with pytest.raises(BackupError, match=expected):
        contents_of(tmp_path)
