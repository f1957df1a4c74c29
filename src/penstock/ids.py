"""Message ids: a UUID that says where a message is, with a keyed check so that it cannot be guessed.

    queue (24 bits) | sequence, high 24 | version 8 (4) | shard (12) | variant (2) | sequence, low 20 | check (42)

No index is needed to find a message by its id, and an id that was never given out does not pass the check.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from struct import Struct

from penstock.limits import QUEUE_NUMBER_MAX, SEQUENCE_MAX, SHARD_MAX

ID_KEY_BYTES = 16
_PLACE = Struct("<HIQ")
_EIGHT = Struct("<8Q")
_UUID = re.compile(rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_VARIANT = 2 << 62
_FRAME = (8 << 76) | _VARIANT
_FRAME_MASK = (15 << 76) | (3 << 62)
_CHECK_BITS = 42


def is_uuid(text: bytes) -> bool:
    return _UUID.fullmatch(text) is not None


class MessageIds:
    """Makes and reads the ids of one shard."""

    def __init__(self, key: bytes, shard: int = 0) -> None:
        assert len(key) == ID_KEY_BYTES
        assert 0 <= shard <= SHARD_MAX
        self.shard = shard
        self._keyed = blake2b(key=key, digest_size=64)
        self._eight = lru_cache(maxsize=4096)(self._make_eight)

    def make(self, queue: int, sequence: int) -> bytes:
        return self._eight(queue, sequence >> 3)[sequence & 7]

    def _make_eight(self, queue: int, block: int) -> list[bytes]:
        """The ids of eight neighbours: one digest serves them all, and ids are mostly asked for in order."""
        assert 0 < queue <= QUEUE_NUMBER_MAX
        assert 0 <= block <= SEQUENCE_MAX >> 3
        start = f"{queue:06x}{block >> 17:06x}8{self.shard:03x}"
        start = f"{start[:8]}-{start[8:12]}-{start[12:]}-"
        checks = self._checks(queue, block)
        ids = []
        for index in range(8):
            low = f"{_VARIANT | ((block << 3 | index) & 0xFFFFF) << _CHECK_BITS | checks[index]:016x}"
            ids.append(f"{start}{low[:4]}-{low[4:]}".encode())
        return ids

    def find(self, text: bytes) -> tuple[int, int] | None:
        """The queue number and sequence of an id, or None if it is not one of ours."""
        try:
            value = int(text.replace(b"-", b""), 16)
        except ValueError:
            return None
        queue = value >> 104
        sequence = ((value >> 80) & 0xFFFFFF) << 20 | (value >> _CHECK_BITS) & 0xFFFFF
        genuine = (
            value & _FRAME_MASK == _FRAME
            and (value >> 64) & SHARD_MAX == self.shard
            and queue > 0
            and self.make(queue, sequence) == text.lower()  # Which also holds the text to the form of a UUID.
        )
        return (queue, sequence) if genuine else None

    def _checks(self, queue: int, block: int) -> list[int]:
        keyed = self._keyed.copy()
        keyed.update(_PLACE.pack(self.shard, queue, block))
        return [check >> (64 - _CHECK_BITS) for check in _EIGHT.unpack(keyed.digest())]
