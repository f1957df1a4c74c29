"""What is on the disk: refused if it is not what the snapshot says, or damaged."""

from __future__ import annotations

import os

import lmdb
import pytest

from penstock.engine.history import content_digest
from penstock.errors import HistoryError
from penstock.storage.history.object_history import ObjectHistory
from tests.support.noter import Noter


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
