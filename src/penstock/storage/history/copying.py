"""Copies the Object History while it is written: `python -m penstock.storage.history.copying DIRECTORY` writes the
bytes of a compact LMDB file to standard output.

The copy is what was committed when it began. A broker lets a process of its own do it: it can be stopped at any
moment, and costs the broker's interpreter nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import lmdb

from penstock.errors import HistoryError
from penstock.limits import HISTORY_MAP_BYTES
from penstock.model.values import Position
from penstock.storage.history.stored import StoredVersions

_NICE = 15  # Clients come first.


def copy_history(path: Path, file: int) -> None:
    """Write a copy to an open file or pipe."""
    try:
        environment = lmdb.open(str(path), map_size=HISTORY_MAP_BYTES, readonly=True, readahead=False, max_dbs=3)
        try:
            environment.copyfd(file, compact=True)
        finally:
            environment.close()
    except lmdb.Error as error:
        raise HistoryError(f"{path} cannot be copied: {error}") from error


def history_reached(path: Path) -> Position | None:
    """How far the history of a stopped broker reaches; None if there is none."""
    if not (path / "data.mdb").exists():
        return None
    stored = StoredVersions(path)
    try:
        return stored.reached
    finally:
        stored.close()


if __name__ == "__main__":
    os.nice(_NICE)
    copy_history(Path(sys.argv[1]), sys.stdout.fileno())
