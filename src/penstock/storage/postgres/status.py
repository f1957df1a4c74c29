"""The state of a store: who owns each shard, and how large its log is."""

from __future__ import annotations

from typing import NamedTuple

from penstock.storage.postgres.connection import Connection

_SHARDS = """
SELECT id, epoch, coalesce(owner, ''), coalesce(address, ''),
    extract(epoch FROM greatest(lease_until, clock_timestamp()) - clock_timestamp())::float, last_batch,
    (SELECT count(*) FROM penstock.part WHERE shard = id)::int,
    (SELECT max(base_offset) FROM penstock.snapshot WHERE shard = id AND counts),
    coalesce(size, 0)::bigint
FROM penstock.shard LEFT JOIN (
    SELECT split_part(relname, '_', 2)::int AS number, sum(pg_total_relation_size(c.oid)) AS size
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE nspname = 'penstock' AND relkind = 'r' AND relname ~ '^(batch|snapshot)_[0-9]+_' GROUP BY 1
) AS sizes ON number = id ORDER BY id
"""


class ShardState(NamedTuple):
    number: int
    epoch: int
    owner: str
    address: str
    lease_seconds: float
    batches: int
    parts: int
    snapshot: int | None
    bytes: int

    @property
    def is_owned(self) -> bool:
        return self.lease_seconds > 0


def shards(connection: Connection) -> list[ShardState]:
    """Every shard of the store."""
    return [ShardState(*row) for row in connection.rows(_SHARDS)]


def sizes(connection: Connection) -> dict[int, int]:
    """The bytes of each shard in the database, by its number."""
    return {shard.number: shard.bytes for shard in shards(connection)}
