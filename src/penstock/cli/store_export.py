"""`penstock store export`: a broker that owns the log for a moment, fetches all of it, and never serves."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

from penstock.cli.exits import CommandError
from penstock.server.config import Config
from penstock.server.recovery import recover
from penstock.server.setting_types import StoreUrl
from penstock.storage import open_store
from penstock.storage.directory import DataDirectory
from penstock.storage.postgres.moving import separate

if TYPE_CHECKING:
    from penstock.storage.backup.making import Progress
    from penstock.storage.postgres.log import StoredLog


def export_log(url: str, path: Path, progress: Progress) -> int:
    """Make a data directory with the log of a store. Returns the offset where it ends."""
    if path.exists() and any(path.iterdir()):
        raise CommandError(f"{path} is not empty: nothing is overwritten. Choose another path, or move it away")
    config = Config(data=path, store=StoreUrl(url))
    store, directory = open_store(url, "penstock store export", config.store_lease_seconds), DataDirectory(path)
    directory.open(store.identity())
    with closing(directory):
        store.acquire(directory)
        try:
            recovered = recover(directory, config, store)
            log = cast("StoredLog", recovered.log)
            progress.expect(log.end.position - log.start.position)
            if recovered.history.unwritten:
                recovered.history.settle(log.start.position)
            recovered.history.close()
            separate(directory, log, progress.advance)
            log.close()
        finally:
            store.release()
    return log.end.offset
