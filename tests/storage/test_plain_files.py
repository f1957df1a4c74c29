"""What stands where a file belongs is looked at before it is opened, and folders are private, however deep."""

from __future__ import annotations

import ast
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import penstock
from penstock.errors import DataDirectoryError
from penstock.storage.directory import DataDirectory, write_durably
from penstock.storage.plain_files import make_private, misplaced
from penstock.storage.shards import open_shards, read_shards
from tests.support.broker import refused_start

SOURCE = Path(penstock.__file__).parent
FILES = ("penstock.json", "lock", f"log/{0:020}.log", f"snapshots/{7:020}.snapshot", "history/data.mdb")


def pipe(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)  # The name of a socket must be short.
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


def folder(path: Path) -> None:
    path.mkdir()


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS = {pipe: "a pipe", listening: "a socket", folder: "a folder", link_to_a_device: "a device"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory that was closed."""
    directory = DataDirectory(tmp_path / "data")
    directory.open()
    directory.close()
    (directory.history).mkdir()
    return directory.path


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("put", "kind"), KINDS.items())
def test_what_is_no_file_is_not_opened(data: Path, name: str, put: Callable[[Path], None], kind: str) -> None:
    path = data / name
    path.unlink(missing_ok=True)
    put(path)
    for use in (DataDirectory(data).open, DataDirectory(data).read_identity):
        with pytest.raises(DataDirectoryError) as refused:
            use()
        assert str(refused.value).startswith(f"{path} is {kind}, not a file")


@pytest.mark.parametrize("name", ["lock", f"log/{0:020}.log"])
def test_a_broker_says_so_and_does_not_start(data: Path, name: str) -> None:
    (data / name).unlink(missing_ok=True)
    os.mkfifo(data / name)
    for flags in ((), ("--workers", "2")) if name == "lock" else ((),):
        code, errors = refused_start(data, flags=flags)
        assert (code, f"{data / name} is a pipe, not a file" in errors, "Traceback" in errors) == (1, True, False)


def test_the_list_of_shards_is_not_opened_either(tmp_path: Path) -> None:
    open_shards(tmp_path / "store", 2)
    (tmp_path / "store" / "shards.json").unlink()
    os.mkfifo(tmp_path / "store" / "shards.json")
    with pytest.raises(DataDirectoryError, match="is a pipe, not a file"):
        read_shards(tmp_path / "store")


def test_what_nobody_opens_may_be_there(data: Path) -> None:
    os.mkfifo(data / "mine")
    (data / "log" / "lost+found").mkdir()
    (data / "links").mkdir()
    DataDirectory(data).read_identity()


def test_a_file_may_be_elsewhere_unless_links_are_not_wanted(data: Path) -> None:
    (data / "penstock.json").rename(data.parent / "kept.json")
    (data / "penstock.json").symlink_to(data.parent / "kept.json")
    assert misplaced(data) is None
    assert misplaced(data, links=False) == f"{data / 'penstock.json'} is a symbolic link, not a file"


def test_nothing_is_written_through_a_link_or_into_a_pipe(tmp_path: Path) -> None:
    (tmp_path / "a.tmp").symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / "b.tmp")
    for name in ("a", "b"):
        with pytest.raises(OSError, match=f"{name}.tmp"):
            write_durably(tmp_path / name, b"x")
    assert not (tmp_path / "victim").exists()


@pytest.fixture
def generous() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("generous")
def test_every_folder_that_is_made_is_private(tmp_path: Path) -> None:
    make_private(tmp_path / "a" / "b" / "c")
    open_shards(tmp_path / "deep" / "store", 2)
    made = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert len(made) == 8
    assert {path.stat().st_mode & 0o777 for path in made} == {0o700}
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private(tmp_path / "file")


def test_no_other_code_makes_several_folders_of_a_store_at_once() -> None:
    rooms = [SOURCE / room for room in ("storage", "server", "cli/log", "cli/reshard", "cli/backup")]
    makers = [path for room in rooms for path in room.rglob("*.py") if _makes_parents(path)]
    assert makers == []


def _makes_parents(path: Path) -> bool:
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    return any(keyword.arg == "parents" for call in calls for keyword in call.keywords)
