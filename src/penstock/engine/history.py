"""Object History: the versions of every object and key, so that unchanged content is detected.

`decide` reads it, `evolve` writes it. The engine is given one; `MemoryHistory` is a complete implementation that
keeps everything in memory and in the snapshots. `SharedHistory` is that of one of several shards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Protocol

import msgspec

from penstock.decoding import decode_json
from penstock.errors import NotLentError, Reason
from penstock.limits import HISTORY_STEPS_MAX
from penstock.model.values import Compared, KeyedRun, LentVersion, Nanos, Place, Position, Version

VERSION_DIGEST_BYTES = 16
_KEYS_PER_SECTION = 1000

Section = tuple[str, bytes, tuple[()]]  # As in a snapshot: kind, and facts as JSON.


class Noting(Protocol):
    """The part of a history that `note` needs. `about` is the object."""

    def get(self, about: str, key: bytes) -> Version | None: ...

    def put(self, about: str, key: bytes, version: Version) -> None: ...


class History(Noting, Protocol):
    def compare(self, about: str, keys: Sequence[bytes], digests: Sequence[bytes]) -> Compared:
        """Compare the newest versions of keys with these contents."""

    def newest(self, about: str, keys: Sequence[bytes]) -> list[Version | None]: ...

    def note_table(self, run: KeyedRun) -> bool:
        """Note all versions of a run in one step. Returns false, and notes nothing, if each needs `note`."""

    def versions(self, about: str, key: bytes, most: int) -> list[Version]:
        """The versions that are still known, newest first."""

    def refusal(self, new_keys: int) -> Reason | None:
        """Why the history cannot take more versions, `new_keys` of them with new keys; None if it can."""

    def sections(self) -> Iterator[Section]:
        """The sections of the history in a snapshot of the engine."""

    def restore(self, facts: bytes) -> None:
        """Load one section."""


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
    """Note a message with an object and a key as a new version, unless it has the same content as the last version,
    or is replayed to a history that already has it or a later one."""
    known = history.get(about, key)
    if known is None or (known.digest != digest and known.position < position):
        versions = known.versions + 1 if known else 1
        history.put(about, key, Version(digest, queue, sequence, versions, time, position))


def note_run(history: History, run: KeyedRun) -> None:
    if history.note_table(run):
        return
    for key, digest, position, sequence in zip(run.keys, run.digests, run.positions, run.all_sequences, strict=True):
        note(history, run.about, key, digest, run.queue, sequence, run.time, position)


_unbegun = blake2b(digest_size=VERSION_DIGEST_BYTES).copy  # Copying a hash is faster than making one.


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

    def newest(self, about: str, keys: Sequence[bytes]) -> list[Version | None]:
        return [self.get(about, key) for key in keys]

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
        for about, key, versions in decode_json(facts, list[tuple[str, bytes, list[Version]]]):
            self._versions[about, key] = versions


class NoHistory(MemoryHistory):
    """A history that stores nothing, for tools that only inspect a state."""

    def put(self, about: str, key: bytes, version: Version) -> None:
        """Not kept."""

    def restore(self, facts: bytes) -> None:
        """Not kept."""


class Lent:
    """A key that a shard has while it decides a command about it, and the newest version."""

    __slots__ = ("is_changed", "is_mine", "version")

    def __init__(self, version: LentVersion | Version | None, is_mine: bool) -> None:
        self.version = version
        self.is_mine = is_mine
        self.is_changed = False


class SharedHistory:
    """The history of one of several shards. Each key has one shard that answers for it and has its versions. A shard
    that stores a message with the key borrows it from there first, and decides with what it was lent."""

    def __init__(self, own: History, is_mine: Callable[[str, bytes], bool]) -> None:
        """`own`: of the keys that this shard answers for."""
        self._own = own
        self._is_mine = is_mine
        self.lent: dict[
            tuple[str, bytes], Lent
        ] = {}  # By object and key. Not a part of the state: a replay has none.

    def get(self, about: str, key: bytes) -> Version | None:
        lent = self.lent.get((about, key))
        if lent and not lent.is_mine:
            return lent.version and Version(*lent.version[:3], 0, 0, 0)
        return self._own.get(about, key) if lent or self._is_mine(about, key) else None

    def put(self, about: str, key: bytes, version: Version) -> None:
        """What belongs to another shard it learns from the log of this one."""
        lent = self.lent.get((about, key))
        if lent:
            lent.version, lent.is_changed = version, True
        if lent.is_mine if lent else self._is_mine(about, key):
            self._own.put(about, key, version)

    def compare(self, about: str, keys: Sequence[bytes], digests: Sequence[bytes]) -> Compared:
        places: list[Place | None] = []
        unknown = 0
        for key, digest in zip(keys, digests, strict=True):
            lent = self.lent.get((about, key))
            if lent is None:
                raise NotLentError(f"{key!r} of {about} was not borrowed from the shard that answers for it")
            version = lent.version
            unknown += version is None
            places.append((version.queue, version.sequence) if version and version.digest == digest else None)
        return Compared(places, unknown, ())

    def before(self, about: str, key: bytes) -> Version | None:
        """The version that an earlier release has noted here of a key that another shard answers for."""
        return self._own.get(about, key)

    def note_table(self, run: KeyedRun) -> bool:
        """Note the versions of this shard's own keys, and those of lent ones beside the loans."""
        about, mine = run.about, list[int]()
        for at, (key, digest, sequence) in enumerate(zip(run.keys, run.digests, run.all_sequences, strict=True)):
            lent = self.lent.get((about, key))
            if lent is None:
                if self._is_mine(about, key):
                    mine.append(at)
                continue
            if lent.version is None or lent.version.digest != digest:
                lent.version, lent.is_changed = LentVersion(digest, run.queue, sequence), True
            if lent.is_mine:
                mine.append(at)
        if mine:
            note_run(self._own, run if len(mine) == len(run.keys) else run.chosen(mine))
        return True

    def newest(self, about: str, keys: Sequence[bytes]) -> list[Version | None]:
        """Of keys that this shard answers for."""
        return self._own.newest(about, keys)

    def versions(self, about: str, key: bytes, most: int) -> list[Version]:
        return self._own.versions(about, key, most)

    def refusal(self, new_keys: int) -> Reason | None:  # noqa: ARG002 - Whoever lends a key has room for a version.
        return None

    def room(self, new_keys: int) -> Reason | None:
        """Why versions of this shard's own keys cannot be taken, `new_keys` of them with new keys."""
        return self._own.refusal(new_keys)

    def sections(self) -> Iterator[Section]:
        return self._own.sections()

    def restore(self, facts: bytes) -> None:
        self._own.restore(facts)
