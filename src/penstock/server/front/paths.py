"""Where a request goes: one row a path. A path is about one shard, or about all of them, or is answered here.

What is answered here makes commands only, which go where they belong, or needs no shard at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from penstock.broker.shard_map import ShardMap
from penstock.dialects.wire import http
from penstock.ids import MessageIds
from penstock.server.front.asking import Merge

ShardOf = Callable[[http.Request, ShardMap, MessageIds], int]


class Here(Struct, frozen=True):
    """Answered by the application of any shard of this worker."""


class At(Struct, frozen=True):
    """Sent to one shard. `shard_of` raises `ProtocolError` if the request is wrong."""

    shard_of: ShardOf


HERE: Final = Here()
Row = Here | At | Merge


# ── The table ─────────────────────────────────────────────────────────────────────────────────────────────────

PATHS: Mapping[tuple[bytes, int], Row | Mapping[bytes, Row]] = {
    # mqs, NQ, glovebox
    (b"messages", 2): HERE,
    (b"queues", 1): HERE,
    (b"queues", 2): HERE,
    (b"post", 1): HERE,
    (b"pull", 1): HERE,
    (b"v1/results", 4): HERE,
    (b"status", 2): HERE,
    # Queues and channels
    (b"v1/queues", 2): HERE,
    (b"v1/queues", 3): HERE,
    (b"v1/queues", 4): HERE,
    (b"v1/channels", 2): HERE,
    (b"v1/channels", 3): HERE,
    (b"v1/channels", 4): HERE,
    # Messages
    (b"v1/publish", 2): HERE,
    (b"v1/confirm", 2): HERE,
    (b"v1/extend", 2): HERE,
    (b"v1/wait", 2): HERE,
    **dict.fromkeys([(b"v1/search", 2), (b"v1/schedule", 2)], HERE),
    (b"v1/messages", 3): HERE,
    (b"v1/schedule", 3): HERE,
    **dict.fromkeys([(b"v1/redrive", 2), (b"v1/redrive", 3), (b"v1/purges", 2), (b"v1/purges", 3)], HERE),
    (b"v1/objects", 4): HERE,
    (b"v1/claims", 3): HERE,
    (b"v1/claims", 4): HERE,
    # Logs
    (b"v1/events", 2): HERE,
    **dict.fromkeys([(b"v1/log", 2), (b"v1/log", 3), (b"v1/backup", 2), (b"v1/backup", 3)], HERE),
    # Administration
    **dict.fromkeys([(b"v1/schedules", 2), (b"v1/schedules", 3), (b"v1/schedules", 4)], HERE),
    **dict.fromkeys([(b"v1/tokens", 2), (b"v1/tokens", 3), (b"v1/tokens", 4)], HERE),
    **dict.fromkeys([(b"v1/workers", 2), (b"v1/workers", 3)], HERE),
    **dict.fromkeys([(b"v1/stage", 3), (b"v1/stage", 4), (b"v1/stage", 5)], HERE),
    (b"v1/settings", 2): HERE,
    (b"v1/cluster", 2): HERE,
    (b"v1/lake", 3): HERE,
    (b"v1/connections", 2): HERE,
    (b"v1/consumers", 2): HERE,
    (b"v1/stats", 2): HERE,
    (b"v1/stats", 3): HERE,
    # Pages
    (b"health", 1): HERE,
    (b"metrics", 1): HERE,
    (b"", 1): HERE,
    (b"console", 2): HERE,
    (b"console", 3): HERE,
    (b"openapi.json", 1): HERE,
    (b"asyncapi.json", 1): HERE,
}


def row_of(path: tuple[bytes, int], method: bytes) -> Row:
    """Unknown paths are refused here, and conversations begin here."""
    row = PATHS.get(path, HERE)
    return row.get(method, HERE) if isinstance(row, Mapping) else row
