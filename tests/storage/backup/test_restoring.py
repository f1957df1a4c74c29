"""Checking a backup finds every kind of change, and a restore overwrites nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import BackupError
from penstock.storage.backup.making import make_backup
from penstock.storage.backup.manifest import contents_of
from penstock.storage.backup.restoring import restore_backup, verify_backup
from penstock.storage.backup.source import StoreSource
from penstock.storage.shards import open_shards
from tests.support.backups import source_of, worked
from tests.support.command_line import penstock
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


# ── Backups of somebody else ──────────────────────────────────────────────────────────────────────────────────

Document = Any


def listed(path: str, size: int = 0) -> Document:
    return {"path": path, "bytes": size, "sha256": sha256(b"").hexdigest()}


def nested(document: Document) -> bytes:
    return json.dumps(document).encode()[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def changed(change: Callable[[Document], object]) -> Callable[[Document], bytes]:
    def spoil(document: Document) -> bytes:
        change(document)
        return json.dumps(document).encode()

    return spoil


HOSTILE = {
    "a name with a zero": (changed(lambda it: it["files"].append(listed("log/\0"))), "it lists 'log/"),
    "a name elsewhere": (changed(lambda it: it["files"].append(listed("/etc/passwd"))), "it lists '/etc/passwd'"),
    "a name above": (changed(lambda it: it["files"].append(listed("log/../../x"))), "it lists 'log/../../x'"),
    "no name": (changed(lambda it: it["files"].append(listed(""))), "it lists ''"),
    "a folder": (changed(lambda it: it["files"].append(listed("log/"))), "it lists 'log/'"),
    "the same twice": (changed(lambda it: it["files"].append(it["files"][0])), "it lists a file twice"),
    "nothing": (changed(lambda it: it.update(files=[])), "it does not list log/"),
    "nothing of nothing": (
        changed(lambda it: (it.update(files=[]), it["state"].update(parts=[], snapshot=None))),
        "it has no part of the log, which reaches offset",
    ),
    "negative sizes": (changed(lambda it: it["files"][0].update(bytes=-1)), "Expected `int` >= 0"),
    "endless sizes": (changed(lambda it: it["files"][0].update(bytes=1 << 70)), "Expected `int` <="),
    "other sizes": (changed(lambda it: it["files"][-1].update(bytes=1)), "it has another size for log/"),
    "no moment": (changed(lambda it: it["state"].update(time=-(1 << 62))), "Expected `int` >= 0"),
    "no key": (
        changed(lambda it: it["state"]["identity"].update(id_key="zz")),
        "id_key is not 32 hexadecimal digits",
    ),
    "depth": (nested, "nested too deeply"),
    "no text": (lambda _: b'{"format": "\xff"}', "is damaged"),
}


@pytest.mark.parametrize(("spoil", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_manifest_that_nobody_writes_is_refused_in_words(
    backup: Path, tmp_path: Path, spoil: Callable[[Document], bytes], why: str
) -> None:
    manifest = backup / "backup.json"
    manifest.write_bytes(spoil(json.loads(manifest.read_bytes())))
    for use in (verify_backup, lambda path: restore_backup(path, tmp_path / "restored")):
        with pytest.raises(BackupError) as refused:
            use(backup)
        assert why in str(refused.value)
        assert str(refused.value).startswith(f"{manifest} is damaged: ")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("shards", [-3, 0, 1 << 40])
def test_no_number_of_shards_but_a_possible_one_is_restored(tmp_path: Path, shards: int) -> None:
    (tmp_path / "backup").mkdir()
    store = {"format": 1, "shards": shards, "id_key": "00" * 16}
    document = {"format": 2, "version": "1", "store": store, "shards": []}
    (tmp_path / "backup" / "backup.json").write_text(json.dumps(document))
    with pytest.raises(BackupError, match=f"shards is {shards}, expected 1 to"):
        restore_backup(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("put", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_what_is_no_file_is_not_opened(backup: Path, tmp_path: Path, put: Callable[[Path], object]) -> None:
    source = tmp_path / "data"
    for name in ("backup.json", contents_of(backup).shards[0].files[0].path):
        path = backup / name
        whole = path.read_bytes()
        path.unlink()
        put(path)
        with pytest.raises(BackupError, match=f"{path.name} is a .*, not a file"):
            restore_backup(backup, tmp_path / "restored")
        with pytest.raises(BackupError, match="not a file"), source_of(source) as found:
            make_backup(backup, StoreSource([found]))
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(whole)
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("was_there", [False, True])
def test_a_restore_that_fails_leaves_the_place_as_it_was(backup: Path, tmp_path: Path, was_there: bool) -> None:
    flip(backup / contents_of(backup).shards[0].files[-1].path)
    if was_there:
        (tmp_path / "restored").mkdir()
    with pytest.raises(BackupError):
        restore_backup(backup, tmp_path / "restored")
    assert (tmp_path / "restored").exists() is was_there
    assert not list((tmp_path / "restored").glob("*"))


def test_the_command_says_so_in_one_sentence_and_fails(backup: Path, tmp_path: Path) -> None:
    manifest = backup / "backup.json"
    manifest.write_bytes(HOSTILE["nothing"][0](json.loads(manifest.read_bytes())))
    ended = penstock("restore", str(backup), str(tmp_path / "restored"))
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended
    assert "it does not list log/" in ended.stderr
    assert not (tmp_path / "restored").exists()


def test_all_folders_of_several_shards_are_private(tmp_path: Path) -> None:
    store = open_shards(tmp_path / "store", 2)
    with ExitStack() as taken:
        sources = [taken.enter_context(source_of(tmp_path / "store" / "shards" / f"000{n}")) for n in range(2)]
        make_backup(tmp_path / "backup", StoreSource(sources, store))
    before = os.umask(0)
    try:
        restore_backup(tmp_path / "backup", tmp_path / "restored")
    finally:
        os.umask(before)
    made = [tmp_path / "restored", *(path for path in (tmp_path / "restored").rglob("*"))]
    assert {path.stat().st_mode & 0o077 for path in made} == {0}
    assert len([path for path in made if path.is_dir()]) == 8
