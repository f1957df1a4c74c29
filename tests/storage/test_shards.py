"""Stores with several shards."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.errors import DataDirectoryError
from penstock.storage.directory import DataDirectory
from penstock.storage.shards import open_shards, shard_directory


def test_each_shard_is_a_data_directory(tmp_path: Path) -> None:
    open_shards(tmp_path / "data", 4)
    for shard in range(4):
        directory = shard_directory(tmp_path / "data", shard)
        identity = directory.open()
        assert (identity.shard, identity.shards) == (shard, 4)
        directory.close()


def test_a_store_stays_as_it_was_made(tmp_path: Path) -> None:
    made = open_shards(tmp_path, 2)
    assert open_shards(tmp_path, 2) == made
    with pytest.raises(DataDirectoryError, match="has 2 shards, not 3; their number cannot change"):
        open_shards(tmp_path, 3)


def test_all_shards_know_the_same_ids_and_have_logs_of_their_own(tmp_path: Path) -> None:
    made = open_shards(tmp_path, 3)
    first, *others = [made.identity(shard).message_ids() for shard in range(3)]
    assert all(other.make(7, 12) == first.make(7, 12) for other in others)
    assert len({ids.log_id for ids in (first, *others)}) == 3


def test_a_start_that_was_cut_off_is_completed(tmp_path: Path) -> None:
    made = open_shards(tmp_path, 2)
    (tmp_path / "shards" / "0001" / "penstock.json").unlink()
    open_shards(tmp_path, 2)
    assert shard_directory(tmp_path, 1).read_identity() == made.identity(1)


def test_a_shard_that_lost_its_identity_does_not_start(tmp_path: Path) -> None:
    open_shards(tmp_path, 2)
    directory = shard_directory(tmp_path, 1)
    directory.open()
    directory.close()
    (directory.log / "0").touch()
    (directory.path / "penstock.json").unlink()
    open_shards(tmp_path, 2)
    with pytest.raises(DataDirectoryError, match=r"has a log, but penstock\.json is missing"):
        directory.open()


def test_a_directory_with_one_shard_is_not_made_into_one_with_several(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path)
    directory.open()
    directory.close()
    with pytest.raises(DataDirectoryError, match="is a data directory with one shard"):
        open_shards(tmp_path, 2)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "is damaged"),
        (b'{"format":1,"shards":2,"id_key":"no key"}', "is damaged: id_key is not 32 hexadecimal digits"),
        (b'{"format":1,"shards":9999,"id_key":"%b"}' % (b"00" * 16), "is damaged: shards is 9999"),
        (
            b'{"format":1,"shards":2,"id_key":"%b","elsewhere":{"a":2}}' % (b"00" * 16),
            "is damaged: elsewhere names a shard that is not one of 2",
        ),
        (b'{"format":9,"shards":2,"id_key":""}', "has format 9"),
    ],
)
def test_a_damaged_store_is_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    (tmp_path / "shards.json").write_bytes(data)
    with pytest.raises(DataDirectoryError, match=problem):
        open_shards(tmp_path, 2)


def test_shards_without_the_file_that_describes_them_are_refused(tmp_path: Path) -> None:
    open_shards(tmp_path, 2)
    (tmp_path / "shards.json").unlink()
    with pytest.raises(DataDirectoryError, match=r"has shards, but shards\.json is missing"):
        open_shards(tmp_path, 2)


def test_a_store_has_a_bounded_number_of_shards(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="a store has 1 to 4096 shards, not 5000"):
        open_shards(tmp_path, 5000)


def test_a_shard_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    open_shards(tmp_path, 2)
    shards = tmp_path / "shards"
    shutil.copytree(shards / "0000", shards / "0001", dirs_exist_ok=True)
    with pytest.raises(DataDirectoryError, match="0001 is shard 0 of 2, of this or another store; restore shard 1"):
        open_shards(tmp_path, 2)
