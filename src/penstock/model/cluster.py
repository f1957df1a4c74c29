"""Who serves what: the shards, and the processes that have them."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct


class ShardPlace(Struct, frozen=True):
    """A shard and who has it."""

    shard: int
    owner: str | None  # The name of a member; None: nobody has it now.
    address: str | None  # Of the owner, for clients.
    epoch: int  # How often it was taken over; 0 if that does not happen.
    here: bool  # The process that answers has it.
    reachable: bool  # The process that answers can use it.


class MemberState(Struct, frozen=True):
    """A process that serves clients, or could."""

    name: str
    number: int
    address: str
    state: str  # serves, waits, drains, drained, silent or gone.
    shards: int
    linked: bool | None  # With the process that answers; None for that one itself, and where there are no links.
    seen_seconds_ago: float | None  # None: unknown, or more than a day.
    this: bool


class ClusterState(Struct, frozen=True):
    """Who serves what, as one process sees it."""

    kind: Literal["single", "workers", "nodes"]
    shards: list[ShardPlace]
    members: list[MemberState]
