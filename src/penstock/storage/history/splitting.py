"""Divides an Object History: each key goes to one of several new histories, with all of its versions.

Versions that were replaced do not know their key, so each history gets all of them. They are found by position alone,
and removed together with the oldest segments of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from penstock.model.values import Position, Version
from penstock.storage.directory import sync
from penstock.storage.history.stored import StoredVersions
from penstock.storage.history.versions import ROW, Changes

_KEYS_AT_ONCE = 100_000


def split_history(source: Path, targets: list[Path], shard_of: Callable[[bytes], int]) -> None:
    """Make a history in each of the directories, unless it would have no keys. `source` is not changed. `shard_of`:
    the one that answers for an object and a key, by their name."""
    with closing(StoredVersions(source)) as whole:
        entries = whole.entries()
        while some := list(islice(entries, _KEYS_AT_ONCE)):
            for shard, path in enumerate(targets):
                _load(path, [entry for entry in some if shard_of(entry[0]) == shard])
        for path in targets:
            if path.exists():
                _complete(path, whole.blocks(), whole.reached)


def _load(path: Path, entries: list[tuple[bytes, Version]]) -> None:
    if entries:
        path.mkdir(mode=0o700, exist_ok=True)
        with closing(StoredVersions(path, writable=True)) as history:
            history.load(entries)


def _complete(path: Path, blocks: Iterable[bytes], reached: Position) -> None:
    """Add what was replaced, in the order of the log."""
    with closing(StoredVersions(path, writable=True)) as history:
        for rows in _together(blocks):
            history.write(_changes(history.reached, ROW.unpack(rows[-ROW.size :])[0] + 1, rows))
        history.write(_changes(history.reached, reached, b""))
    sync(path)


def _together(blocks: Iterable[bytes]) -> Iterator[bytes]:
    remaining = iter(blocks)
    while some := list(islice(remaining, _KEYS_AT_ONCE // 32)):
        yield b"".join(some)


def _changes(base: Position, reached: Position, rows: bytes) -> Changes:
    return Changes(base, reached, 0, b"", b"", b"", rows)
