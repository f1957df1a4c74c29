"""The Object History: the versions on the disk, and those noted since, which are not written yet.

The engine reads and notes versions here. Now and then the noted ones are cut off. Once they are durable in the log, a
process of its own writes them, together with the position of the log that they reach to. So the disk never knows more
than the log. What it lacks is replayed from the last snapshot, which says how far the disk must have come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.decoding import decode_json
from penstock.errors import HistoryError, Reason
from penstock.limits import (
    HISTORY_BATCH_KEYS,
    HISTORY_KEYS_DEFAULT,
    HISTORY_READS_MAX,
    HISTORY_STEPS_MAX,
    HISTORY_UNWRITTEN_MAX,
    RUN_MESSAGES_MIN,
)
from penstock.model.values import Compared, KeyedRun, Place, Position, Version
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import (
    DIGEST_BYTES,
    PACKED,
    ROW,
    Changes,
    Unwritten,
    name_of,
    names_of,
    unpacked,
)
from penstock.storage.history.writer import HistoryWriter

_PLACE = Struct("<IQ")  # In a packed version, after its digest: queue and sequence.
_DIGESTS = np.dtype(("<u8", 2))
_VERSIONS = np.dtype(  # The same as `PACKED`.
    [
        ("digest", _DIGESTS),
        ("queue", "<u4"),
        ("sequence", "<u8"),
        ("versions", "<u4"),
        ("changed", "<i8"),
        ("position", "<u8"),
    ]
)
_ROWS = np.dtype([("position", ">u8"), ("version", f"V{PACKED.size}")])  # The same as `ROW`.
assert _VERSIONS.names == Version._fields
assert (_VERSIONS.itemsize, _ROWS.itemsize) == (PACKED.size, ROW.size)


class _Facts(msgspec.Struct):
    """What a snapshot holds of the history: all versions before this position were noted."""

    noted: Position


class _Cut(NamedTuple):
    """What is being written. It brings the disk from one position of the log to another."""

    base: Position
    reached: Position
    earliest: Position
    noted: Unwritten


class ObjectHistory:
    def __init__(self, path: Path, *, keys_max: int = HISTORY_KEYS_DEFAULT) -> None:
        self.path = path
        self.holds: Callable[[Position], bool] = lambda _: True  # Is this position still in the log?
        self._keys_max = keys_max
        self._stored = StoredVersions(path) if (path / "data.mdb").exists() else None
        self.noted = self.reached  # Every version so far is before it, and no later one will be.
        self._writer = HistoryWriter(path)
        self._unwritten = Unwritten()
        self._fresh = 0  # How many of their keys are new.
        self._cut: _Cut | None = None
        self._fresh_cut = 0
        self._reads = 0  # Since the last check of how much of the file is mapped.

    # ── The engine's side ───────────────────────────────────────────────────────────────────────────────────

    def get(self, about: str, key: bytes) -> Version | None:
        packed = self._newest(name_of(about, key))
        return None if packed is None else unpacked(packed)

    def compare(self, about: str, keys: Sequence[bytes], digests: Sequence[bytes]) -> Compared:
        names, noted = names_of(about, keys), self._unwritten
        known = older = self._older(names)
        if not noted.starts.keys().isdisjoint(names):
            known = [noted.newest_of(name) or packed for name, packed in zip(names, older, strict=True)]
        places: list[Place | None] = [
            _PLACE.unpack_from(packed, DIGEST_BYTES) if packed and packed.startswith(digest) else None
            for packed, digest in zip(known, digests, strict=True)
        ]
        return Compared(places, known.count(None), older)

    def newest(self, about: str, keys: Sequence[bytes]) -> list[Version | None]:
        names = names_of(about, keys)
        noted, older = self._unwritten.newest_of, self._older(names)
        found = [noted(name) or packed for name, packed in zip(names, older, strict=True)]
        return [None if packed is None else unpacked(packed) for packed in found]

    def put(self, about: str, key: bytes, version: Version) -> None:
        name = name_of(about, key)
        known = self._newest(name)
        self._note(version.position)
        if known is None:
            self._fresh += 1
        else:
            self._unwritten.replace(version.position, known)
        self._unwritten.put(name, PACKED.pack(*version))

    def note_table(self, run: KeyedRun) -> bool:
        # Only for first versions since the last cut, and if either all of the keys were known before or none of them.
        names = names_of(run.about, run.keys)
        if len(names) < RUN_MESSAGES_MIN or len(set(names)) < len(names):
            return False
        if not self._unwritten.starts.keys().isdisjoint(names):
            return False
        known = run.seen or self._read(names)
        unknown = known.count(None)
        if 0 < unknown < len(names):
            return False
        table = np.empty(len(names), dtype=_VERSIONS)
        table["digest"] = np.frombuffer(b"".join(run.digests), dtype=_DIGESTS)
        table["queue"] = run.queue
        table["sequence"] = run.sequences or np.arange(run.sequence, run.sequence + len(names))
        table["versions"] = 1
        table["changed"] = run.time
        table["position"] = positions = np.array(run.positions)
        if not unknown:
            before = np.frombuffer(b"".join(known), dtype=_VERSIONS)  # type: ignore[arg-type]
            same = (before["digest"] == table["digest"]).all(axis=1)
            if (same | (before["position"] >= table["position"])).any():
                return False
            table["versions"] += before["versions"]
            rows = np.empty(len(names), dtype=_ROWS)
            rows["position"] = positions
            rows["version"] = before.view(_ROWS["version"])
            self._unwritten.replaced += rows.tobytes()
        self._note(run.positions[0])
        self.noted = run.positions[-1] + 1
        self._fresh += unknown
        self._unwritten.put_new(names, table.tobytes())
        return True

    def _note(self, position: Position) -> None:
        assert position >= self.noted, "versions are noted once, in the order of the log"
        self.noted = position + 1

    def versions(self, about: str, key: bytes, most: int) -> list[Version]:
        """The versions that are still in the log, newest first."""
        found: list[Version] = []
        version = self.get(about, key)
        for _ in range(HISTORY_STEPS_MAX):
            if version is None or len(found) == most:
                break
            if self.holds(version.position):
                found.append(version)
            version = self._replaced_by(version)
        return found

    def refusal(self, new_keys: int) -> Reason | None:
        """Why the history cannot take more versions, `new_keys` of them with new keys; None if it can."""
        if self._unwritten.count >= HISTORY_UNWRITTEN_MAX:
            return Reason.HISTORY_BEHIND
        return Reason.TOO_MANY_KEYS if new_keys and self.keys + new_keys > self._keys_max else None

    def sections(self) -> Iterator[tuple[str, bytes, tuple[()]]]:
        if self.noted:
            yield "history", msgspec.json.encode(_Facts(self.noted)), ()

    def restore(self, facts: bytes) -> None:
        noted = decode_json(facts, _Facts).noted
        if self.reached < noted:
            ends = f"ends at position {self.reached}" if self._stored else "is missing"
            raise HistoryError(f"{self.path} {ends}, but the snapshot says that it reached {noted}")

    def _newest(self, name: bytes) -> bytes | None:
        return self._unwritten.newest_of(name) or self._read([name])[0]

    def _older(self, names: list[bytes]) -> list[bytes | None]:
        """The versions of keys before the last cut. None for those with a newer version, which need not be read."""
        noted = self._unwritten.starts
        if noted.keys().isdisjoint(names):
            return self._read(names)
        read = iter(self._read([name for name in names if name not in noted]))
        return [None if name in noted else next(read) for name in names]

    def _read(self, names: list[bytes]) -> list[bytes | None]:
        if not self._stored:
            stored: list[bytes | None] = [None] * len(names)
        else:
            stored = self._stored.current(names)
            self._reads += len(names)
            if self._reads >= HISTORY_READS_MAX:
                self._reads = 0
                self._stored.bound_memory()
        if self._cut and not self._cut.noted.starts.keys().isdisjoint(names):
            cut = self._cut.noted.newest_of
            return [cut(name) or packed for name, packed in zip(names, stored, strict=True)]
        return stored

    def _replaced_by(self, version: Version) -> Version | None:
        position = version.position
        packed = self._unwritten.replaced_by(position)
        if packed is None and self._cut:
            packed = self._cut.noted.replaced_by(position)
        if packed is None and self._stored:
            packed = self._stored.replaced(position)
        return None if packed is None else unpacked(packed)

    # ── The disk's side ─────────────────────────────────────────────────────────────────────────────────────

    @property
    def reached(self) -> Position:
        """Every version before this position is on the disk."""
        return self._stored.reached if self._stored else 0

    @property
    def keys(self) -> int:
        return (self._stored.keys if self._stored else 0) + self._fresh_cut + self._fresh

    @property
    def unwritten(self) -> int:
        """How many keys have versions that were noted since the last cut."""
        return len(self._unwritten.starts)

    @property
    def behind(self) -> bool:
        """Whether it is time to write."""
        return self._unwritten.count >= HISTORY_BATCH_KEYS

    @property
    def is_cut(self) -> bool:
        """Was something cut that is not written yet?"""
        return self._cut is not None

    def cut(self, earliest: Position) -> None:
        """Set what was noted so far aside, to be written. The log begins at `earliest`."""
        assert not self.is_cut, "one at a time"
        self._cut = _Cut(self.reached, self.noted, earliest, self._unwritten)
        self._unwritten = Unwritten()
        self._fresh_cut, self._fresh = self._fresh, 0

    def write(self) -> None:
        """Write what was cut, which must be durable in the log. In any thread, and again if it fails."""
        assert self._cut is not None
        self._writer.write(Changes.of(*self._cut))

    def written(self) -> None:
        """Make what was written visible. Called after `write`, in the thread that uses the history."""
        if self._stored:
            self._stored.refresh()
            self._stored.bound_memory()
        else:
            self._stored = StoredVersions(self.path)
        self._cut, self._fresh_cut = None, 0

    def settle(self, earliest: Position) -> None:
        """Cut and write in one step, for callers that may block."""
        self.cut(earliest)
        self.write()
        self.written()

    def rest(self) -> None:
        """End the process that writes. The next write starts another."""
        self._writer.close()

    def close(self) -> None:
        self._writer.close()
        if self._stored:
            self._stored.close()
            self._stored = None
