"""The data directories that an offline verb is about: the one of a store with one shard, or those of several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from penstock.storage.directory import DataDirectory
    from penstock.storage.shards import Shards

Shard = Annotated[int | None, typer.Option("--shard", min=0, help="Only this shard, of a store with several.")]


def shards_in(path: Path) -> Shards | None:
    """The store with several shards in a directory; None if it has one."""
    from penstock.storage.shards import read_shards

    return None if (path / "penstock.json").exists() else read_shards(path)


def directories(path: Path, shard: int | None = None) -> list[DataDirectory]:
    """The data directories of all shards of a store, or of the chosen one."""
    from penstock.storage.directory import DataDirectory
    from penstock.storage.shards import shard_directory

    found = shards_in(path)
    last = found.shards - 1 if found else 0
    if shard is not None and shard > last:
        has = f"the shards 0 to {last}" if last else "only shard 0"
        raise CommandError(f"{path} has {has}, and --shard is {shard}", Exit.USAGE)
    if found is None:
        return [DataDirectory(path)]
    return [shard_directory(path, each) for each in (range(found.shards) if shard is None else (shard,))]


def one_directory(path: Path, shard: int | None) -> DataDirectory:
    """For verbs that cannot be about several shards."""
    first, *others = directories(path, shard)
    if others:
        raise CommandError(f"{path} has {1 + len(others)} shards; choose one with --shard", Exit.USAGE)
    return first


def check_empty(target: Path) -> None:
    """A directory that is to be made must not exist, or be empty."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CommandError(f"{target} is not empty: nothing is overwritten; choose another path")
