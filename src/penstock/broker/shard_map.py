"""Which shard has a queue: by its name, or by its number. And which answers for an idempotency key, or an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from zlib import crc32

from penstock.limits import SHARD_MAX, SHARDS_OF_NAMES_MAX
from penstock.remembering import remembered
from penstock.storage.history.versions import name_of, names_of


class ShardMap:
    """Names are spread by their hash. Shard `s` of `n` numbers its queues `s + 1`, `s + 1 + n`, `s + 1 + 2 n`, … So a
    number is unique in the store, and in a store with one shard they are 1, 2, 3."""

    def __init__(self, shards: int = 1, elsewhere: Mapping[str, int] | None = None) -> None:
        """`elsewhere`: queues that an operator has put into another shard than that of their hash."""
        assert 1 <= shards <= SHARD_MAX + 1
        self.shards = shards
        self.elsewhere = dict(elsewhere or {})
        self.of_name = remembered(SHARDS_OF_NAMES_MAX)(self._of_name)

    def _of_name(self, name: str) -> int:
        return self.elsewhere.get(name, _hashed(name.encode()) % self.shards)

    def of_key(self, key: bytes) -> int:
        """The shard that knows which request an idempotency key was used for."""
        return _hashed(key) % self.shards

    def of_number(self, number: int) -> int:
        return (number - 1) % self.shards

    def of_object(self, about: str, key: bytes) -> int:
        """The shard that answers for an object and a key: it knows the newest version, wherever that is."""
        return shard_of_version(name_of(about, key), self.shards)

    def of_objects(self, keys: Sequence[tuple[str, bytes]]) -> list[int]:
        """The same for several of them. Each has its object."""
        found: list[int] = []
        for about, some in groupby(keys, itemgetter(0)):
            found += [crc32(name) % self.shards for name in names_of(about, [key for _, key in some])]
        return found


def shard_of_version(name: bytes, shards: int) -> int:
    """`name`: of an object and a key, as the Object History has it."""
    return crc32(name) % shards


def answers_for(shard: int, shards: int) -> Callable[[str, bytes], bool]:
    """Whether a shard answers for an object and a key."""
    return lambda about, key: shard_of_version(name_of(about, key), shards) == shard


def _hashed(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest())
