"""Object History: the versions of whatever has an object and a key, so that what has not changed can be told.

`decide` reads it, `evolve` writes it. The engine is handed one; `MemoryHistory` is the honest double: everything in
memory, and in the snapshots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec

from penstock.errors import Reason
from penstock.limits import HISTORY_STEPS_MAX
from penstock.model.values import Compared, KeyedRun, Nanos, Position, Version

VERSION_DIGEST_BYTES = 16
_KEYS_PER_SECTION = 1000

Section = tuple[str, bytes, tuple[()]]  # As in a snapshot: kind, and facts as JSON.


class Noting(Protocol):
    """What `note` needs of a history. `about` is the object."""

    def get(self, about: str, key: bytes) -> Version | None: ...

    def put(self, about: str, key: bytes, version: Version) -> None: ...


class History(Noting, Protocol):
    def compare(self, about: str, keys: Sequence[bytes], digests: Sequence[bytes]) -> Compared:
        """Do the newest versions of keys have these contents?"""

    def note_table(self, run: KeyedRun) -> bool:
        """Note all of them in one step. False, and nothing is noted: `note` has to look at each."""

    def versions(self, about: str, key: bytes, most: int) -> list[Version]:
        """Those that can still be told, newest first."""

    def refusal(self, new_keys: int) -> Reason | None:
        """Why no more versions can be taken, so many of them of new keys, if they cannot."""

    def sections(self) -> Iterator[Section]:
        """What belongs into a snapshot of the engine."""

    def restore(self, facts: bytes) -> None:
        """Take one section back."""


def note(
    history: Noting,
    about: str,
    key: bytes,
    digest: bytes,
    queue: int,
    sequence: int,
    time: Nanos,
    position: Position,
) -> None:
    """A message with an object and a key is a new version of them, unless it says the same as the last one, or is
    replayed to a history that knows it, or what came after it, already."""
    known = history.get(about, key)
    if known is None or (known.digest != digest and known.position < position):
        versions = known.versions + 1 if known else 1
        history.put(about, key, Version(digest, queue, sequence, versions, time, position))


def note_run(history: History, run: KeyedRun) -> None:
    if history.note_table(run):
        return
    of_each = zip(run.keys, run.digests, run.positions, strict=True)
    for sequence, (key, digest, position) in enumerate(of_each, start=run.sequence):
        note(history, run.about, key, digest, run.queue, sequence, run.time, position)


_unbegun = blake2b(digest_size=VERSION_DIGEST_BYTES).copy  # To make one anew takes as long as to hash 200 bytes.


def content_digest(body: bytes) -> bytes:
    return content_digests((body,))[0]


def content_digests(bodies: Sequence[bytes]) -> list[bytes]:
    digests = []
    for body in bodies:
        digest = _unbegun()
        digest.update(body)
        digests.append(digest.digest())
    return digests


class MemoryHistory:
    def __init__(self) -> None:
        self._versions: dict[tuple[str, bytes], list[Version]] = {}

    def get(self, about: str, key: bytes) -> Version | None:
        known = self._versions.get((about, key))
        return known[-1] if known else None

    def put(self, about: str, key: bytes, version: Version) -> None:
        versions = self._versions.setdefault((about, key), [])
        versions.append(version)
        del versions[:-HISTORY_STEPS_MAX]

    def compare(self, about: str, keys: Sequence[bytes], digests: Sequence[bytes]) -> Compared:
        known = [self.get(about, key) for key in keys]
        places = [
            (version.queue, version.sequence) if version and version.digest == digest else None
            for version, digest in zip(known, digests, strict=True)
        ]
        return Compared(places, known.count(None), ())

    def note_table(self, _: KeyedRun) -> bool:
        return False

    def versions(self, about: str, key: bytes, most: int) -> list[Version]:
        return self._versions.get((about, key), [])[: -most - 1 : -1]

    def refusal(self, _: int) -> Reason | None:
        return None

    def sections(self) -> Iterator[Section]:
        entries = [(*about, versions) for about, versions in self._versions.items()]
        for start in range(0, len(entries), _KEYS_PER_SECTION):
            yield "history", msgspec.json.encode(entries[start : start + _KEYS_PER_SECTION]), ()

    def restore(self, facts: bytes) -> None:
        for about, key, versions in msgspec.json.decode(facts, type=list[tuple[str, bytes, list[Version]]]):
            self._versions[about, key] = versions


class NoHistory(MemoryHistory):
    """For those who only look at a state: versions are not asked for, and are where they are."""

    def put(self, about: str, key: bytes, version: Version) -> None:
        """Not kept."""

    def restore(self, facts: bytes) -> None:
        """Not kept."""
