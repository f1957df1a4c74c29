"""Object History: the last version of whatever has an object and a key, so that what has not changed can be told.

`decide` reads it, `evolve` writes it. The engine is handed one; `MemoryHistory` is the honest double: everything in
memory, and in the snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple, Protocol

import msgspec

from penstock.model import Nanos

VERSION_DIGEST_BYTES = 16
_ENTRIES_PER_SECTION = 1000

Section = tuple[str, bytes, tuple[()]]  # As in a snapshot: kind, and facts as JSON.


class Version(NamedTuple):
    """What is known of an object and key: the content published last, by its digest, and where it is."""

    digest: bytes
    queue: int
    sequence: int
    versions: int  # How many there were, this one counted.
    changed: Nanos  # When this one was logged.


class History(Protocol):
    """`about` is the object."""

    def get(self, about: str, key: bytes) -> Version | None: ...

    def put(self, about: str, key: bytes, version: Version) -> None:
        """Called once for each new version, live and in replay. Events are replayed from a snapshot: an
        implementation with a memory of its own passes over versions that it has, which are none later in `changed`
        than the last event it knows of."""

    def sections(self) -> Iterator[Section]:
        """What belongs into a snapshot of the engine."""

    def restore(self, facts: bytes) -> None:
        """Take one section back."""


def content_digest(body: bytes) -> bytes:
    return blake2b(body, digest_size=VERSION_DIGEST_BYTES).digest()


class MemoryHistory:
    def __init__(self) -> None:
        self._versions: dict[tuple[str, bytes], Version] = {}

    def get(self, about: str, key: bytes) -> Version | None:
        return self._versions.get((about, key))

    def put(self, about: str, key: bytes, version: Version) -> None:
        self._versions[about, key] = version

    def sections(self) -> Iterator[Section]:
        entries = [(*about, version) for about, version in self._versions.items()]
        for start in range(0, len(entries), _ENTRIES_PER_SECTION):
            yield "history", msgspec.json.encode(entries[start : start + _ENTRIES_PER_SECTION]), ()

    def restore(self, facts: bytes) -> None:
        for entry in msgspec.json.decode(facts, type=list[tuple[str, bytes, Version]]):
            self._versions[entry[0], entry[1]] = entry[2]
