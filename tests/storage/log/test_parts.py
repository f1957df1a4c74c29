"""Reading ahead in a part: small batches are read together, and of large ones only what is asked for."""

from __future__ import annotations

from penstock.storage.log.parts import ReadAhead


class Bytes:
    """A part that notes what is read of it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[int] = []

    def read(self, position: int, size: int) -> bytes:
        found = self.data[position : position + size]
        self.reads.append(len(found))
        return found

    def end(self) -> int:
        return len(self.data)

    def close(self) -> None:
        pass


DATA = bytes(range(256)) * 4096  # One MiB.


def test_what_follows_is_read_in_large_pieces() -> None:
    part = Bytes(DATA)
    ahead = ReadAhead(part)
    assert b"".join(ahead.read(at, 100) for at in range(0, len(DATA), 100)) == DATA
    assert len(part.reads) < 12


def test_who_skips_far_reads_little() -> None:
    part = Bytes(DATA)
    ahead = ReadAhead(part)
    for at in range(0, len(DATA), 128 << 10):
        assert ahead.read(at, 64) == DATA[at : at + 64]
    assert sum(part.reads) < len(DATA) / 4


def test_more_than_is_read_ahead_and_the_end() -> None:
    ahead = ReadAhead(Bytes(DATA))
    assert ahead.read(10, 900_000) == DATA[10:900_010]
    assert ahead.read(len(DATA) - 5, 64) == DATA[-5:]
    assert ahead.read(len(DATA), 64) == b""
    assert ahead.read(0, 64) == DATA[:64]
