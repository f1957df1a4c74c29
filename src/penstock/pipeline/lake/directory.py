"""The directory of a lake: its log, the format of its tables, and the process that fills it.

penstock.json     the log that the lake is made from, and the format of its tables
lock              held by the process that fills the lake
_checkpoint/      Spark's checkpoint of the stream
_adopting         there while the lake is being cut back to a log that was restored from a backup
_initial/         what waited at the offset at which the lake begins, if the log had no earlier events any more
<table>/          date=…/<first>-<end>-….parquet and _delta_log/; files not committed yet are in _staging-…/
_parts/<table>/   the same, for tables that are kept in parts: <table>/ is what was published last
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from penstock.decoding import decode_json
from penstock.errors import InUseError, LakeAddressError, LakeError
from penstock.pipeline.source.log import Extent
from penstock.storage.directory import lock_holder, take_lock, write_durably

# Format 2 had no column `shard`. In format 1, parts were in <table>/, and the column `queue` was the number of the
# queue.
LAKE_FORMAT = 3
PARTS = "_parts"
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+:/")  # A path has one slash where an address has two.


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The logs that a lake is made from: one for each shard."""

    format: int
    logs: tuple[str, ...] = ()
    log: str = ""  # Instead, in older formats.

    @property
    def names(self) -> list[str]:
        """The names under which the tables record the offsets that they have reached."""
        return [f"penstock-log-{log}-{shard}" for shard, log in enumerate(self.logs or (self.log,))]


_taken: set[Path] = set()  # Lakes that this process fills.


class Lake:
    def __init__(self, path: Path) -> None:
        if _ADDRESS.match(str(path)):
            raise LakeAddressError(str(path))
        self.path = path.absolute()
        self.checkpoint = self.path / "_checkpoint"
        self.adoption = self.path / "_adopting"  # There while an adoption is not complete.
        self._lock: int | None = None

    def origin(self) -> Origin:
        """The log of this lake. Raises `LakeError` if there is no lake, or one of another format."""
        origin = self.origin_of_any_format()
        if origin.format < LAKE_FORMAT:
            raise LakeError(
                f"{self.path} is a lake of an older version (format {origin.format}, now {LAKE_FORMAT}): "
                f"upgrade it with penstock pipeline upgrade --lake {self.path}"
            )
        if origin.format > LAKE_FORMAT:
            raise LakeError(
                f"{self.path} has format {origin.format}, made by a newer version of Penstock; "
                f"this version reads format {LAKE_FORMAT}: update Penstock"
            )
        return origin

    def origin_of_any_format(self) -> Origin:
        try:
            return decode_json((self.path / "penstock.json").read_bytes(), Origin)
        except FileNotFoundError:
            raise LakeError(
                f"there is no lake in {self.path} yet: fill one with penstock pipeline run --lake {self.path}"
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise LakeError(f"{self.path / 'penstock.json'} cannot be read: {error}") from None

    def take(self) -> None:
        """Lock the lake for the one process that fills it. The lock ends with the process, even after a crash."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(self.path / "lock")
        if self._lock is None:
            raise InUseError(
                f"the lake {self.path.absolute()} is being filled by {lock_holder(self.path / 'lock')}."
                " Stop that process, or choose another directory"
            )
        os.utime(self.path / "lock")  # `filling_seconds` reads it.
        _taken.add(self.path)

    def filling_seconds(self) -> float | None:
        """For how long a process has been filling the lake; None if no process does."""
        path = self.path / "lock"
        if not path.exists():
            return None
        # Opening and closing a lock that this process holds would release it.
        lock = None if self.path in _taken else take_lock(path)
        if lock is None:
            return max(0.0, time.time() - path.stat().st_mtime)
        os.close(lock)
        return None

    def emptiness(self) -> str:
        """The message for a user of an empty lake."""
        seconds = self.filling_seconds()
        if seconds is None:
            return f"{self.path} is empty: fill it with penstock pipeline run --lake {self.path}"
        return (
            f"{self.path} is empty: the pipeline started {seconds:.0f} s ago. Its first batch arrives about a "
            "minute after the start, or a few seconds after the first event of the log"
        )

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _taken.discard(self.path)

    def open_for(self, shards: Sequence[Extent]) -> Origin:
        """Make this the lake of a log, or check that it is. Raises `LakeError` if it is the lake of another log."""
        path = self.path / "penstock.json"
        asked = Origin(LAKE_FORMAT, tuple(log.id for log in shards))
        if not path.exists():
            write_durably(path, msgspec.json.encode(asked) + b"\n")
        origin = self.origin_of_any_format()  # An older one is upgraded later.
        if origin.names != asked.names:
            raise LakeError(_another_log(self.path, origin, shards))
        if self.adoption.exists():
            raise LakeError(f"{self.path} is half adopted: run penstock pipeline adopt again")
        return origin


def _another_log(path: Path, origin: Origin, shards: Sequence[Extent]) -> str:
    before = origin.logs or (origin.log,)
    continued = shards[0].same_until(before[0])
    now = ", ".join(log.id for log in shards)
    sentence = f"{path} is the lake of another log ({', '.join(before)}, not {now}"
    if not continued:
        return f"{sentence}): choose another directory"
    return (
        f"{sentence}; the second continues the first from offset {continued}, by a restore): cut the lake back to"
        f" that offset with penstock pipeline adopt --lake {path}, or choose another directory"
    )
