"""Checking a backup finds every kind of change, and a restore overwrites nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import BackupError
from penstock.storage.backup.making import make_backup
from penstock.storage.backup.manifest import contents_of
from penstock.storage.backup.restoring import restore_backup, verify_backup
from penstock.storage.backup.source import StoreSource
from tests.support.backups import source_of, worked
from tests.support.spoilt_logs import flipped


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    with worked(tmp_path / "data") as directory:
        directory.create("orders")
        directory.publish("orders", *map(str, range(30)))
        directory.snapshot()
        directory.publish("orders", *map(str, range(30)))
    with source_of(tmp_path / "data") as source:
        make_backup(tmp_path / "backup", StoreSource([source]))
    return tmp_path / "backup"


def flip(path: Path) -> None:
    path.write_bytes(flipped(path.read_bytes(), 8 * path.stat().st_size - 1))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("spoil", [flip, cut, Path.unlink])
def test_every_file_is_checked(backup: Path, spoil: Callable[[Path], None], tmp_path: Path) -> None:
    for file in contents_of(backup).shards[0].files:
        path = backup / file.path
        whole = path.read_bytes()
        spoil(path)
        problems = verify_backup(backup)
        assert len(problems) == 1
        assert file.path in problems[0]
        with pytest.raises(BackupError, match=path.name):
            restore_backup(backup, tmp_path / f"restored-{path.name}")
        path.write_bytes(whole)
    assert verify_backup(backup) == []


def test_a_restore_that_fails_leaves_no_directory_that_starts(backup: Path, tmp_path: Path) -> None:
    flip(backup / contents_of(backup).shards[0].files[-1].path)
    with pytest.raises(BackupError):
        restore_backup(backup, tmp_path / "restored")
    assert not (tmp_path / "restored" / "penstock.json").exists()


def test_a_restore_overwrites_nothing(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "mine").touch()
    with pytest.raises(BackupError, match="is not empty: nothing is overwritten"):
        restore_backup(backup, tmp_path / "target")
    with pytest.raises(BackupError, match=r"is not a backup: backup\.json is missing"):
        restore_backup(tmp_path / "target", tmp_path / "other")


def test_bytes_after_the_end_of_the_backup_are_not_restored(backup: Path, tmp_path: Path) -> None:
    newest = max((backup / "log").iterdir())
    with newest.open("ab") as file:
        file.write(b"left by a backup that was cut off")
    assert verify_backup(backup) == []
    restore_backup(backup, tmp_path / "restored")
    with worked(tmp_path / "restored") as restored:
        assert restored.log.end.offset == contents_of(backup).shards[0].state.offset
