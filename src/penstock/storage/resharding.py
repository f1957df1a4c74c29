"""The files of a store with one shard that becomes one with several, in the same directory or in another one.

resharding/          in the directory that is made: marks what is beside it as unfinished, and is removed last
resharding/whole/    the old log, with new names for its files: recovery may mend this one
resharding/shards/   the shards, until all of them are complete

Finished segments never change, so every shard has each of them under a name of its own, and a snapshot of its part of
the state. Positions in the log stay as they are. The old directory counts until its `penstock.json` is moved away.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import msgspec

from penstock.model.values import Nanos
from penstock.storage.directory import DataDirectory, Identity, create_private, sync, write_durably
from penstock.storage.history.copying import copy_history
from penstock.storage.log.batch import Point
from penstock.storage.log.continuing import HOLE_BYTES, continue_log
from penstock.storage.log.segment import is_unborn, open_segment, segment_paths
from penstock.storage.log.snapshot import list_snapshots, publish_snapshot, write_snapshot
from penstock.storage.plain_files import make_private
from penstock.storage.port import Section
from penstock.storage.shards import Shards, write_shards

UNFINISHED = "resharding"
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS}
_SHARD_BYTES = 1 << 20  # What a shard takes in any case, about.


class Attempt(Enum):
    """What an earlier run has left in a directory."""

    NONE = "none"
    UNFINISHED = "unfinished"  # The old directory counts.
    MADE = "made"  # The shards count, and there may be files that nobody needs.


def earlier_attempt(target: Path) -> Attempt:
    if (target / "shards.json").exists() and not (target / "penstock.json").exists():
        return Attempt.MADE
    return Attempt.UNFINISHED if (target / UNFINISHED).exists() else Attempt.NONE


def undo(target: Path) -> None:
    """Remove what an unfinished run has left."""
    (target / "shards.json").unlink(missing_ok=True)
    for folder in ("shards", UNFINISHED):
        shutil.rmtree(target / folder, ignore_errors=True)
    sync(target)


def tidy(target: Path) -> None:
    """Remove what nobody needs once the shards count: the old log, if it was here."""
    for folder in ("log", "snapshots", "history", UNFINISHED):
        shutil.rmtree(target / folder, ignore_errors=True)
    sync(target)


# ── Space ─────────────────────────────────────────────────────────────────────────────────────────────────────


def bytes_needed(source: DataDirectory, target: Path, shards: int) -> int:
    """How much room the shards need on the disk of `target`, about."""
    segments = [path.stat().st_size for path in segment_paths(source.log)]
    snapshots = [path.stat().st_size for path in list_snapshots(source.snapshots)]
    history = source.history / "data.mdb"
    copies = _copies(source.path, target, shards)
    fixed = 2 * history.stat().st_size if history.exists() else 0
    return copies * sum(segments) + sum(segments[-1:]) + 2 * sum(snapshots[:1]) + fixed + shards * _SHARD_BYTES


def _copies(source: Path, target: Path, shards: int) -> int:
    """How many times finished segments are copied."""
    first, second = target / UNFINISHED / "one-name", target / UNFINISHED / "another-name"
    first.touch()
    try:
        os.link(first, second)
        second.unlink()
    except OSError:
        return shards + 1
    return int(source.stat().st_dev != target.stat().st_dev)


def _place(path: Path, target: Path) -> None:
    """Give a file that never changes one more name; copy it where that is not possible."""
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        _copy(path, target)


def _copy(path: Path, target: Path) -> None:
    shutil.copyfile(path, target)
    target.chmod(0o600)
    sync(target)


# ── The old log ───────────────────────────────────────────────────────────────────────────────────────────────


def make_whole(source: DataDirectory, target: Path) -> DataDirectory:
    """All of the source under new names. What recovery may change is a copy."""
    assert source.identity is not None, "the source is open"
    whole = _make_folders(target / UNFINISHED / "whole")
    segments = segment_paths(source.log)
    if segments and is_unborn(segments[-1]):
        segments.pop()
    for path in segments[:-1]:
        _place(path, whole.log / path.name)
    for path in segments[-1:]:
        _copy(path, whole.log / path.name)
    for path in list_snapshots(source.snapshots):
        _place(path, whole.snapshots / path.name)
    if (source.history / "data.mdb").exists():
        whole.history.mkdir(mode=0o700)
        with create_private(whole.history / "data.mdb") as file:
            copy_history(source.history, file.fileno())
    _write_identity(whole, source.identity)
    return whole


def finish(whole: DataDirectory, end: Point) -> None:
    """Cut the newest segment to its last batch. One that has none is removed."""
    for path in segment_paths(whole.log)[-1:]:
        segment = open_segment(path)
        if segment.base_offset == end.offset:
            path.unlink()
        else:
            os.truncate(path, segment.file_offset(end.position))
            sync(path)


def _make_folders(path: Path) -> DataDirectory:
    directory = DataDirectory(path)
    for folder in (directory.log, directory.snapshots):
        make_private(folder)
    return directory


def _write_identity(directory: DataDirectory, identity: Identity) -> None:
    write_durably(directory.path / "penstock.json", msgspec.json.encode(identity) + b"\n")


# ── The shards ────────────────────────────────────────────────────────────────────────────────────────────────


def shard_path(target: Path, shard: int) -> Path:
    """Where a shard is until all are complete."""
    return target / UNFINISHED / "shards" / f"{shard:04}"


def begin_shard(target: Path, shard: int, whole: DataDirectory) -> DataDirectory:
    """A shard with the old log. Its history can be put beside it before the snapshot is written."""
    directory = _make_folders(shard_path(target, shard))
    for path in segment_paths(whole.log):
        _place(path, directory.log / path.name)
    return directory


def write_shard(
    directory: DataDirectory, identity: Identity, end: Point, sections: Iterable[Section], name: int, now: Nanos
) -> None:
    """Write the state and the first segment of a shard. `end`: of the old log; `name`: the number of a new name."""
    start = Point(end.offset, end.position + (HOLE_BYTES if identity.shard else 0))
    continue_log(directory.log, identity.shard, start, (name, f"shard {identity.shard} of {identity.shards}"), now)
    write_snapshot(directory.snapshots, sections, start, now)
    publish_snapshot(directory.snapshots, start.offset)
    _write_identity(directory, identity)
    sync(directory.log)
    sync(directory.path)


def switch(target: Path, shards: Shards) -> None:
    """Let the shards count. The last rename decides: that of the old identity, or of `shards.json` elsewhere."""
    unfinished = target / UNFINISHED
    sync(unfinished / "shards")
    (unfinished / "shards").rename(target / "shards")
    sync(target)
    write_shards(target, shards)
    if (target / "penstock.json").exists():
        (target / "penstock.json").rename(unfinished / "penstock.json")
        sync(target)
