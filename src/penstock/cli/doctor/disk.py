"""The disk of the data directory: is there room, does it keep what is written, and how fast is an fsync?"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.cli.doctor.finding import Finding, State, graded
from penstock.cli.shards import shards_in

_FREE_BYTES_MIN = 256 << 20
_FREE_BYTES_GOOD = 5 << 30
_FSYNCS = 50
_FSYNC_SECONDS_GOOD = 0.02
_FSYNC_SECONDS_MAX = 0.5
_VOLATILE = {"tmpfs", "ramfs", "overlay"}
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"}


def findings(data: Path) -> Iterator[Finding]:
    """All that is to be known about the directory, or the place where it will be made."""
    place = nearest(data)
    if not place.is_dir() or not os.access(place, os.W_OK):
        yield Finding(
            "data directory",
            State.FAIL,
            f"{place} is not a directory that this user can write to",
            "choose another with --data, or correct its owner",
        )
        return
    yield _directory(data)
    yield _space(place)
    yield _kind(place)
    yield fsync_speed(place)


def _directory(data: Path) -> Finding:
    if not data.is_dir():
        return Finding("data directory", State.OK, f"{data.absolute()} (not made yet)")
    stored = shards_in(data)
    return graded(
        "data directory",
        f"{data.absolute()}" + (f" ({stored.shards} shards)" if stored else ""),
        fails=False,
        warns=(data / "resharding").exists(),
        remedy="a move to several shards was cut off; run `penstock reshard` again",
    )


def nearest(path: Path) -> Path:
    """The path itself, or the nearest directory above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _space(place: Path) -> Finding:
    usage = shutil.disk_usage(place)
    return graded(
        "free space",
        f"{usage.free / (1 << 30):,.1f} GiB of {usage.total / (1 << 30):,.1f} GiB",
        fails=usage.free < _FREE_BYTES_MIN,
        warns=usage.free < _FREE_BYTES_GOOD,
        remedy="free some space, or choose a larger disk with --data: a full disk stops the broker",
    )


def _kind(place: Path) -> Finding:
    kind = filesystem(place)
    remedy = (
        "what is written there is lost when the machine or container ends; choose a disk or volume with --data"
        if kind in _VOLATILE
        else "fsync over a network is slow, and file locks may not hold; choose a local disk with --data"
    )
    return graded("file system", kind, fails=False, warns=kind in _VOLATILE | _REMOTE, remedy=remedy)


def filesystem(place: Path) -> str:
    """The kind of the file system that a directory is on."""
    found, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, its_kind, *_ = line.split(" ")
        inside = place.is_relative_to(mount.replace("\\040", " "))
        if inside and len(mount) >= len(found):
            found, kind = mount, its_kind
    return kind


def fsync_speed(place: Path) -> Finding:
    """Write a block and fsync it, as each commit of the log does."""
    seconds = sorted(_timed_fsyncs(place))
    median, slowest = statistics.median(seconds), seconds[-1]
    return graded(
        "fsync",
        f"{median * 1000:.2f} ms in the middle, {slowest * 1000:.2f} ms at worst, of {len(seconds)}",
        fails=median > _FSYNC_SECONDS_MAX,
        warns=median > _FSYNC_SECONDS_GOOD,
        remedy="every answer of the broker waits for one fsync; use a faster disk, best one with a protected cache",
    )


def _timed_fsyncs(place: Path) -> Iterator[float]:
    block = os.urandom(4096)
    with tempfile.TemporaryFile(dir=place, prefix=".penstock-doctor-") as file:
        for _ in range(_FSYNCS):
            began = time.perf_counter()
            file.write(block)
            file.flush()
            os.fsync(file.fileno())
            yield time.perf_counter() - began
