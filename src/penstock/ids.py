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
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_FRAME = (8 << 76) | (2 << 62)
_FRAME_MASK = (15 << 76) | (3 << 62)
_CHECK_BITS = 42


def is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


class MessageIds:
    """Makes and reads the ids of one shard."""

    def __init__(self, key: bytes, shard: int = 0) -> None:
        assert len(key) == ID_KEY_BYTES
        assert 0 <= shard <= SHARD_MAX
        self.shard = shard
        self._keyed = blake2b(key=key, digest_size=64)
        self._checks = lru_cache(maxsize=4096)(self._checks_of_eight)
        self._start = lru_cache(maxsize=4096)(self._start_of)

    def make(self, queue: int, sequence: int) -> str:
        assert 0 < queue <= QUEUE_NUMBER_MAX
        assert 0 < sequence <= SEQUENCE_MAX
        low = "%016x" % ((2 << 62) | ((sequence & 0xFFFFF) << _CHECK_BITS) | self._check(queue, sequence))
        return f"{self._start(queue, sequence >> 20)}{low[:4]}-{low[4:]}"

    def _start_of(self, queue: int, high: int) -> str:
        """The first half of an id, the same for a million messages."""
        digits = "%016x" % ((queue << 40) | (high << 16) | (8 << 12) | self.shard)
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:]}-"

    def find(self, text: str) -> tuple[int, int] | None:
        """The queue number and sequence of an id, or None if it is not one of ours."""
        value = int(text.replace("-", ""), 16)
        queue = value >> 104
        sequence = ((value >> 80) & 0xFFFFFF) << 20 | (value >> _CHECK_BITS) & 0xFFFFF
        genuine = (
            value & _FRAME_MASK == _FRAME
            and (value >> 64) & SHARD_MAX == self.shard
            and value & ((1 << _CHECK_BITS) - 1) == self._check(queue, sequence)
        )
        return (queue, sequence) if genuine else None

    def _check(self, queue: int, sequence: int) -> int:
        at = (sequence & 7) * 8
        return int.from_bytes(self._checks(queue, sequence >> 3)[at : at + 8], "little") >> (64 - _CHECK_BITS)

    def _checks_of_eight(self, queue: int, block: int) -> bytes:
        """One digest serves eight neighbours, and ids are mostly asked for in order."""
        keyed = self._keyed.copy()
        keyed.update(_PLACE.pack(self.shard, queue, block))
        return keyed.digest()
