"""A store with two shards, made without a broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from penstock.model.events import Event, NameDefined, QueueCreated
from penstock.model.settings import QueueSettings
from penstock.storage.shards import open_shards, shard_directory
from tests.support.offline import make_log


def make_two_shards(path: Path, *steps: Sequence[Event]) -> Path:
    """Each shard has one queue, with the number 1 or 2, and the content type 1. Steps are for the shards in turn."""
    if not path.exists():
        open_shards(path, 2)
        for shard, (name, text) in enumerate((("orders", "text/plain"), ("others", "text/csv"))):
            defined = [QueueCreated(1, shard + 1, name, QueueSettings()), NameDefined(1, 1, text)]
            make_log(shard_directory(path, shard).path, defined)
    for index, events in enumerate(steps):
        make_log(shard_directory(path, index % 2).path, events)
    return path
