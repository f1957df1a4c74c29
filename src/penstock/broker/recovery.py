"""Opens what a data directory holds: the Object History, the log, and the state that the log describes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.keyed_messages import catch_up
from penstock.broker.shard_map import answers_for
from penstock.config.config import Config
from penstock.engine.engine import Engine
from penstock.engine.history import History, SharedHistory
from penstock.errors import DataDirectoryError, HistoryError
from penstock.storage import open_log
from penstock.storage.directory import DataDirectory
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.port import Log

if TYPE_CHECKING:  # Only a broker that uses it needs its library.
    from penstock.storage.postgres.store import PostgresStore


from datetime import UTC, tzinfo
from functools import cache
from zoneinfo import ZoneInfo

logger = logging.getLogger(__name__)

Home = Callable[[str], int]


class Recovered(NamedTuple):
    engine: Engine
    log: Log
    history: ObjectHistory


def recover(
    directory: DataDirectory, config: Config, store: PostgresStore | None = None, home: Home | None = None
) -> Recovered:
    """`store`: where the log is, and this process owns it. Otherwise it is in the directory. `home`: the shard of a
    queue, if there are several."""
    try:
        history = ObjectHistory(directory.history, keys_max=config.history.keys_max)
        try:
            return _replay(directory, config, history, store, home)
        except BaseException:
            history.close()
            raise
    except HistoryError as error:
        rebuild = f"penstock log rebuild-history {directory.path}"
        raise HistoryError(f"{error}. Rebuild the Object History from the log: {rebuild}") from error
    except OSError as error:
        raise DataDirectoryError(f"cannot use {directory.path}: {error}") from error


def _replay(
    directory: DataDirectory,
    config: Config,
    history: ObjectHistory,
    store: PostgresStore | None,
    home: Home | None,
) -> Recovered:
    identity = directory.identity
    assert identity is not None, "the directory is open"
    known: History = history
    if identity.shards > 1:
        known = SharedHistory(history, answers_for(identity.shard, identity.shards))
    engine = Engine(known, config.names.max, zone_of, shard=identity.shard, shards=identity.shards, home=home)
    open_one = store.open_log if store else open_log
    log = open_one(directory, segment_bytes=config.log.segment_bytes)
    sections, events = log.recover()
    if store:
        catch_up(history, directory, log)
    if sections is not None:
        engine.restore(sections)
    replayed = 0
    for event, position in events:
        if history.behind:
            history.settle(log.start.position)
        engine.evolve(event, position)
        replayed += 1
    if history.reached > log.end.position:
        raise HistoryError(f"{history.path} is ahead of the log, which ends at position {log.end.position}")
    history.holds = log.holds
    facts = {"replayed": replayed, "offset": log.end.offset, "queues": len(engine.queues)}
    logger.info("recovered", extra=facts)
    return Recovered(engine, log, history)


# Time zones: read from the system, or from the package tzdata where the system has none.


def zone_of(name: str) -> tzinfo | None:
    """The zone with this IANA name; None if there is none."""
    try:
        return _read(name)
    except (OSError, ValueError, LookupError):
        return None


@cache  # There are some hundred. What cannot be read is not kept.
def _read(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)
