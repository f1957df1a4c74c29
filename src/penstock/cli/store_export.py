"""`penstock store export`: a broker that owns all shards for a moment, fetches their logs, and never serves."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

from penstock.broker.recovery import recover
from penstock.broker.shard_map import ShardMap
from penstock.cli.shards import check_empty
from penstock.config.config import Config
from penstock.config.types import StoreUrl
from penstock.storage import open_store
from penstock.storage.directory import DataDirectory
from penstock.storage.postgres.moving import log_bytes, separate
from penstock.storage.postgres.nodes import NodeTables
from penstock.storage.shards import SHARDS_FORMAT, Shards, shard_directory, write_shards

if TYPE_CHECKING:
    from penstock.storage.backup.making import Progress
    from penstock.storage.postgres.log import StoredLog
    from penstock.storage.postgres.store import PostgresStore


def export_store(url: str, path: Path, progress: Progress) -> list[int]:
    """Make a data directory with the log of each shard of a store. Returns the offsets where they end."""
    check_empty(path)
    config = Config(data=path, store=StoreUrl(url))
    store = open_store(url, "penstock store export", config.store_lease_seconds)
    identity = store.identity()
    with closing(store.connect()) as connection:
        elsewhere = NodeTables(connection).elsewhere()
        where = ShardMap(identity.shards, elsewhere)
        with ExitStack() as owned:
            taken = [_take(owned, store, path, shard, identity.shards) for shard in range(identity.shards)]
            progress.expect(sum(log_bytes(connection, shard) for shard in range(identity.shards)))
            ends = [_export(directory, config, each, where, progress) for directory, each in taken]
    if identity.shards > 1:  # Last: without this file the shards are not served.
        write_shards(path, Shards(SHARDS_FORMAT, identity.shards, identity.id_key, elsewhere))
    return ends


def _take(
    owned: ExitStack, store: PostgresStore, path: Path, number: int, shards: int
) -> tuple[DataDirectory, PostgresStore]:
    """Own a shard until all are exported: what is between two shards must stay as it is."""
    directory = shard_directory(path, number) if shards > 1 else DataDirectory(path)
    shard = store.of_shard(number, owner="")
    directory.open(shard.identity())
    owned.callback(directory.close)
    shard.acquire(directory)
    owned.callback(shard.release)
    return directory, shard


def _export(
    directory: DataDirectory, config: Config, store: PostgresStore, where: ShardMap, progress: Progress
) -> int:
    recovered = recover(directory, config, store, where.of_name)
    log = cast("StoredLog", recovered.log)
    if recovered.history.unwritten:
        recovered.history.settle(log.start.position)
    recovered.history.close()
    separate(directory, log, progress.advance)
    log.close()
    return log.end.offset
