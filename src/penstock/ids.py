"""Message ids: a UUID that says where a message is, with a keyed check so that it cannot be guessed.

    queue (24 bits) | sequence, high 24 | version 8 (4) | shard (12) | variant (4) | sequence, low 20 | check (40)

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
_UUID = re.compile(rb"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_CHECK_DIGITS = 10  # Hexadecimal: 40 bits.
_CHECKS_AT = range(0, 8 * _CHECK_DIGITS, _CHECK_DIGITS)
_BYTES = [b"%02x" % value for value in range(256)]


def is_uuid(text: bytes) -> bool:
    return _UUID.fullmatch(text) is not None


class MessageIds:
    """Makes and reads the ids of one shard."""

    def __init__(self, key: bytes, shard: int = 0, salt: str = "") -> None:
        """`salt` tells logs apart that share a key, because one was restored from a backup of the other."""
        assert len(key) == ID_KEY_BYTES
        assert 0 <= shard <= SHARD_MAX
        self.shard = shard
        self._keyed = blake2b(key=key, digest_size=64)
        self.log_id = self._log_id(salt)
        self._eight = lru_cache(maxsize=4096)(self._make_eight)
        self._start = lru_cache(maxsize=1024)(self._make_start)

    def _log_id(self, salt: str) -> str:
        """Tells the log of these messages from any other, and nothing of the key. No place has 24 bytes."""
        hashed = self._keyed.copy()
        hashed.update(b"the identity of this log" + salt.encode())
        return hashed.hexdigest()[:16]

    def make(self, queue: int, sequence: int) -> bytes:
        return self._eight(queue, sequence >> 3)[sequence & 7]

    def _make_eight(self, queue: int, block: int) -> list[bytes]:
        """The ids of eight neighbours: one digest serves them all, and ids are mostly asked for in order."""
        assert 0 < queue <= QUEUE_NUMBER_MAX
        assert 0 <= block <= SEQUENCE_MAX >> 3
        keyed = self._keyed.copy()
        keyed.update(_PLACE.pack(self.shard, queue, block))
        checks = keyed.hexdigest().encode()
        start = self._start(queue, block >> 5)
        low = (block << 3) & 0xFF
        return [start + _BYTES[low + index] + checks[at : at + _CHECK_DIGITS] for index, at in enumerate(_CHECKS_AT)]

    def _make_start(self, queue: int, blocks: int) -> bytes:
        """What 256 neighbours have in common."""
        start = f"{queue:06x}{blocks >> 12:06x}8{self.shard:03x}"
        return f"{start[:8]}-{start[8:12]}-{start[12:]}-8{blocks & 0xFFF:03x}-".encode()

    def find(self, text: bytes) -> tuple[int, int] | None:
        """The queue number and sequence of an id, or None if it is not one of ours."""
        try:
            value = int(text.replace(b"-", b""), 16)
        except ValueError:
            return None
        queue = value >> 104
        sequence = ((value >> 80) & 0xFFFFFF) << 20 | (value >> 4 * _CHECK_DIGITS) & 0xFFFFF
        # The comparison also holds the text to the form of a UUID, the right shard and the fixed bits.
        genuine = 0 < queue <= QUEUE_NUMBER_MAX and self.make(queue, sequence) == text.lower()
        return (queue, sequence) if genuine else None
