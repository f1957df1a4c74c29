"""The directory of a lake: which log it is of, the format of its tables, and who fills it.

penstock.json     which log the lake is of, and the format of its tables
lock              held by the process that fills the lake
_checkpoint/      Spark's, of the stream
<table>/          date=…/<first>-<end>-….parquet and _delta_log/; files on their way in are in _staging-…/
_parts/<table>/   the same, for tables that are kept in parts: <table>/ is what was last published of them
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from penstock.errors import InUseError, LakeError
from penstock.pipeline.source.log import Extent
from penstock.storage.directory import lock_holder, take_lock, write_durably

LAKE_FORMAT = 2  # 1: parts were in <table>/, the number of a queue was `queue`.
PARTS = "_parts"


class Origin(msgspec.Struct, frozen=True):
    """Which log a lake is of."""

    format: int
    log: str
    shard: int

    @property
    def name(self) -> str:
        """Under which the tables keep how far they are."""
        return f"penstock-log-{self.log}-{self.shard}"


_taken: set[Path] = set()  # Lakes that this process fills.


class Lake:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.checkpoint = self.path / "_checkpoint"
        self._lock: int | None = None

    def origin(self) -> Origin:
        """Raises `LakeError` where there is no lake, or none of this version."""
        origin = self.origin_of_any_format()
        if origin.format < LAKE_FORMAT:
            raise LakeError(
                f"{self.path} is a lake of an older version (format {origin.format}, now {LAKE_FORMAT}): "
                f"penstock pipeline upgrade --lake {self.path} rewrites its tables"
            )
        if origin.format > LAKE_FORMAT:
            raise LakeError(
                f"{self.path} has format {origin.format}, made by a newer version of Penstock; "
                f"this version reads format {LAKE_FORMAT}: update it"
            )
        return origin

    def origin_of_any_format(self) -> Origin:
        try:
            return msgspec.json.decode((self.path / "penstock.json").read_bytes(), type=Origin)
        except FileNotFoundError:
            raise LakeError(
                f"there is no lake in {self.path} yet: penstock pipeline run --lake {self.path} fills one"
            ) from None
        except (OSError, msgspec.DecodeError) as error:
            raise LakeError(f"{self.path / 'penstock.json'} cannot be read: {error}") from None

    def take(self) -> None:
        """For the one process that fills the lake; let go of when it ends, however it ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(self.path / "lock")
        if self._lock is None:
            raise InUseError(
                f"the lake {self.path.absolute()} is being filled by {lock_holder(self.path / 'lock')}."
                " Stop that process, or choose another directory"
            )
        os.utime(self.path / "lock")  # When it was taken.
        _taken.add(self.path)

    def filling_seconds(self) -> float | None:
        """For how long a process has been filling the lake; None if there is none."""
        path = self.path / "lock"
        if not path.exists():
            return None
        # Looking at a lock that this process holds would let go of it.
        lock = None if self.path in _taken else take_lock(path)
        if lock is None:
            return max(0.0, time.time() - path.stat().st_mtime)
        os.close(lock)
        return None

    def emptiness(self) -> str:
        """What to say to somebody who finds nothing in the lake."""
        seconds = self.filling_seconds()
        if seconds is None:
            return f"{self.path} is empty: penstock pipeline run --lake {self.path} fills it"
        return (
            f"{self.path} is empty: the pipeline started {seconds:.0f} s ago, and its first batch is there about a "
            "minute after the start, or a few seconds after the first event of the log"
        )

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
            _taken.discard(self.path)

    def open_for(self, log: Extent) -> Origin:
        """The lake of this log; made if it is not there."""
        path = self.path / "penstock.json"
        if not path.exists():
            write_durably(path, msgspec.json.encode(Origin(LAKE_FORMAT, log.id, log.shard)) + b"\n")
        origin = self.origin_of_any_format()  # `upgrade` is for those that are older.
        if (origin.log, origin.shard) != (log.id, log.shard):
            raise LakeError(f"{self.path} is the lake of another log, {origin.log}; this one is {log.id}")
        return origin
