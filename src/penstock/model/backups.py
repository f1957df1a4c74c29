"""What a backup asks of a shard, and what it is answered: the state that there is to copy, and its bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.model.queries import Reading
from penstock.model.values import Packed, Position


class ReadBackup(Reading, frozen=True):
    """What there is to copy. Its files stay for a while."""

    shard: int | None = None  # None: all shards, at one moment.


class StandStill(Reading, frozen=True):
    """The same as a flow of two pieces: `Still` when the shard commits nothing any more, and its state when that is
    wanted. There is no state if the shard could not wait so long."""

    shard: int | None = None


class ReadBackupLog(Reading, frozen=True):
    """The bytes of the log between two positions, as a flow."""

    start: Position
    end: Position
    shard: int | None = None


class ReadSnapshot(Reading, frozen=True):
    """The bytes of a snapshot, as a flow whose head is `SnapshotSize`."""

    offset: int
    shard: int | None = None


class ReadHistory(Reading, frozen=True):
    """The bytes of the Object History, as a flow."""

    shard: int | None = None


class BackupState(Packed, frozen=True):
    """Of one shard."""

    document: dict[str, Any]  # As `storage/backup/manifest.py` has it.


class BackupStates(Packed, frozen=True):
    """Of all shards, at one moment."""

    shards: int
    elsewhere: dict[str, int]  # Queues that are not in the shard of their name.
    states: list[BackupState]


class Still(Packed, frozen=True):
    """The shard commits nothing."""


class SnapshotSize(Packed, frozen=True):
    bytes: int


def joined(elsewhere: Mapping[str, int], states: Sequence[BackupState]) -> BackupStates:
    return BackupStates(len(states), dict(elsewhere), list(states))
