"""The data directory: the lock, the identity, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import DataDirectoryError, InUseError
from penstock.storage.directory import DataDirectory
from penstock.storage.log.segments import SegmentLog
from tests.support.samples import close_log
from tests.support.small_segments import write

HOLDER = """
import sys
from pathlib import Path
from penstock.storage.directory import DataDirectory
directory = DataDirectory(Path(sys.argv[1]))
directory.open()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_excludes_a_second_process_and_dies_with_the_first(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(InUseError, match=f"{tmp_path} is in use by process {holder.pid}"):
            DataDirectory(tmp_path).open()
        holder.kill()
        holder.wait()
        directory = DataDirectory(tmp_path)
        directory.open()
        directory.close()


def test_the_identity_stays_with_the_data(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "new" / "data")
    first = directory.open()
    assert directory.read_identity() == first
    directory.close()
    assert directory.open() == first
    directory.close()
    assert first.id_key != DataDirectory(tmp_path / "other").open().id_key


def test_a_log_without_its_identity_is_not_touched(log: SegmentLog, tmp_path: Path) -> None:
    write(log, 1)
    close_log(log)
    (tmp_path / "penstock.json").unlink()
    with pytest.raises(DataDirectoryError, match=r"has a log, but penstock\.json is missing"):
        DataDirectory(tmp_path).open()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is damaged: .*backup"),
        (b"{}", "is damaged: .*missing required field"),
        (b"[1, 2]", "is damaged"),
        (b"\xff\x00", "is damaged"),
        (b'{"format":1,"shard":0,"id_key":"\xff"}', "is damaged"),
        (b'{"format":1,"shard":0,"id_key":"no key"}', "is damaged: id_key is not 32 hexadecimal digits"),
        (b'{"format":1,"shard":0,"id_key":"00"}', "is damaged: id_key is not 32"),
        (b'{"format":1,"shard":4096,"id_key":"%b"}' % (b"00" * 16), "is damaged: shard is 4096"),
        (b'{"format":9,"shard":0,"id_key":""}', "has format 9"),
    ],
)
def test_an_identity_that_cannot_be_read_is_named(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "penstock.json").write_bytes(content)
    with pytest.raises(DataDirectoryError, match=says):
        DataDirectory(tmp_path).open()


def in_another_process(path: Path) -> subprocess.CompletedProcess[str]:
    """Opens the directory there: a lock is no obstacle to the process that has it."""
    code = "import sys, pathlib, penstock.storage.directory as d; d.DataDirectory(pathlib.Path(sys.argv[1])).open()"
    return subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)


def test_a_directory_whose_lock_file_was_removed_is_still_in_use(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.open()
    (tmp_path / "lock").unlink()
    other = in_another_process(tmp_path)
    assert "is in use by another process, though its lock file was removed" in other.stderr
    directory.close()
    assert in_another_process(tmp_path).returncode == 0


def test_whoever_has_a_directory_can_find_out_that_it_was_taken_away(tmp_path: Path) -> None:
    data = tmp_path / "data"
    directory = DataDirectory(data)
    directory.open()
    assert directory.lost() is None
    lock = data / "lock"
    lock.rename(data / "kept")
    assert "lock file" in str(directory.lost())
    lock.touch()
    assert "lock file" in str(directory.lost()), "another file of the same name"
    lock.unlink()
    (data / "kept").rename(lock)
    assert directory.lost() is None
    data.rename(tmp_path / "elsewhere")
    assert f"the data directory {data} was removed" in str(directory.lost())
    assert "in use" in in_another_process(tmp_path / "elsewhere").stderr, "to look has released no lock"
    directory.close()


def test_a_directory_that_cannot_be_made_is_the_operators_business(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataDirectoryError, match="is not a directory"):
        DataDirectory(tmp_path / "file" / "data").open()


def test_looking_at_a_directory_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="is not a Penstock data directory"):
        DataDirectory(tmp_path).read_identity()
