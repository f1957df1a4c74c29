"""The header of a batch: where the batch starts and ends, and whether its payload is whole."""

from __future__ import annotations

import pytest
from crc32c import crc32c

from penstock.errors import DamagedLogError
from penstock.storage.log.batch import HEADER_BYTES, check_payload, read_header
from tests.support.samples import logged, seal


def test_a_header_comes_back_and_knows_where_its_batch_ends() -> None:
    header, payload = seal([logged(1, b"one"), logged(2, b"two")], 7, 1000)
    assert read_header(header.to_bytes()) == header
    assert header.start == (7, 1000)
    assert header.end == (9, 1000 + HEADER_BYTES + len(payload))


def test_a_payload_with_a_flipped_bit_is_refused_with_what_is_lost() -> None:
    header, payload = seal([logged(1, b"one"), logged(2, b"two")], 7, 1000)
    assert check_payload(header, payload) == payload
    with pytest.raises(DamagedLogError, match="events 7 to 8 are damaged; read on from offset 9"):
        check_payload(header, bytes([payload[0] ^ 1]) + payload[1:])


def test_a_header_that_is_short_or_foreign_is_no_header() -> None:
    data = seal([logged(1, b"one")])[0].to_bytes()
    assert read_header(b"") is None
    assert read_header(data[: HEADER_BYTES - 1]) is None
    assert read_header(b"XBAT" + data[4:]) is None


def test_a_newer_format_is_refused_by_its_number() -> None:
    data = bytearray(seal([logged(1, b"one")])[0].to_bytes())
    data[4:6] = (9).to_bytes(2, "little")
    data[HEADER_BYTES - 4 : HEADER_BYTES] = crc32c(bytes(data[: HEADER_BYTES - 4])).to_bytes(4, "little")
    with pytest.raises(DamagedLogError, match="format 9; this version reads format 1"):
        read_header(bytes(data))
