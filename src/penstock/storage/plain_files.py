"""What may stand where a file belongs, and how folders are made that only their owner can enter.

Opening a pipe waits for ever, a device has no end, and a link leads anywhere. So a directory is looked at before
anything in it is opened.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_NAMES = ("penstock.json", "shards.json", "backup.json", "lock", "owner", "boot")
_FOLDERS = ("log", "snapshots", "history")
_SUFFIXES = frozenset((".log", ".snapshot", ".mdb"))
_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a symbolic link",
}


def misplaced(directory: Path, *, links: bool = True) -> str | None:
    """What in a data directory, or in a backup, is no file although it stands where one belongs. `links`: there may
    be links to files."""
    for path in _files_of(directory):
        try:
            mode = (path.stat() if links else path.lstat()).st_mode
        except OSError:
            continue  # It is not there, or cannot be opened either.
        is_other = stat.S_ISDIR(mode) and path.parent != directory and path.suffix not in _SUFFIXES
        if not (stat.S_ISREG(mode) or is_other):
            return f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'something else')}, not a file"
    return None


def _files_of(directory: Path) -> Iterator[Path]:
    """Everything that may be opened."""
    yield from (directory / name for name in _NAMES)
    for folder in _FOLDERS:
        try:
            yield from (directory / folder / name for name in os.listdir(directory / folder))
        except OSError:
            pass  # Whoever needs what is in it finds that out.


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, so that only their owner can enter them: `mkdir` gives its
    mode to the last one alone."""
    for each in reversed([each for each in folder.parents if not each.exists()]):
        each.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
