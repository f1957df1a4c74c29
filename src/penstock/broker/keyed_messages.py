"""The messages of a log that have an object and a key: what an Object History is made from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from penstock.decoding import decode_json
from penstock.engine.history import content_digest, note
from penstock.engine.names import StoredNames
from penstock.errors import DamagedLogError
from penstock.limits import READ_BYTES
from penstock.model.kinds import Kind
from penstock.model.values import Position
from penstock.storage.directory import DataDirectory
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.inspect import newest_snapshot
from penstock.storage.log.batch import HEADER_BYTES, Header, extent_bounds, records_of
from penstock.storage.log.names import names_defined
from penstock.storage.log.view import Cursor, View
from penstock.storage.port import Log


class KeyedMessage(NamedTuple):
    about: str
    key: bytes
    digest: bytes
    queue: int
    sequence: int
    time: int
    position: Position


def batches(view: View, start: Position = 0) -> Iterator[tuple[Header, bytes]]:
    """All batches of the log that end after a position, before and after holes."""
    for index, part in enumerate(view.parts):
        if view.part_end(index) <= start:
            continue
        cursor = Cursor(part.base_position)
        try:
            while cursor.position < view.part_end(index):
                yield from cursor.read(view, READ_BYTES)
        except DamagedLogError as error:
            raise DamagedLogError(f"{part}: {error}: check it with penstock log verify") from error
        finally:
            cursor.close()


class Names(dict[int, str]):
    """Names by number, from the newest snapshot and from the log."""

    def __init__(self, data: DataDirectory, view: View) -> None:
        super().__init__()
        self._view: View | None = view  # Not searched yet.
        snapshot = newest_snapshot(data)
        for kind, facts, _ in snapshot[1] if snapshot else ():
            if kind == "engine":
                self.update(decode_json(facts, StoredNames).by_number())

    def __missing__(self, number: int) -> str:
        """Search the whole log for a name that neither the snapshot nor the log so far has defined: a name that was
        forgotten is defined again when it is used again."""
        view, self._view = self._view, None
        for batch in batches(view) if view else ():
            self.update(names_defined(*batch))
        if number not in self:
            raise DamagedLogError(f"name {number} is neither in the log nor in a snapshot")
        return self[number]


def keyed_messages(header: Header, payload: bytes, names: Names) -> Iterator[KeyedMessage]:
    """The messages of a batch that have an object and a key, and the versions of other shards that were learned.
    Names that the batch defines are added to `names`."""
    records = records_of(header, payload)
    named = records["kind"] == Kind.NAME_DEFINED
    learned = records["kind"] == Kind.LEARNED
    keyed = ((records["kind"] == Kind.LOGGED) | learned) & (records["object"] > 0) & (records["key_bytes"] > 0)
    chosen = np.flatnonzero(named | keyed)
    if not len(chosen):
        return
    bounds = extent_bounds(records)
    for index in chosen.tolist():
        record, start = records[index], int(bounds[index])
        key_start = start + int(record["body_bytes"])
        body = payload[start:key_start]
        if named[index]:
            names[int(record["queue"])] = body.decode()
            continue
        yield KeyedMessage(
            names[int(record["object"])],
            payload[key_start : key_start + int(record["key_bytes"])],
            body if learned[index] else content_digest(body),
            *(int(record["queue"]), int(record["sequence"]), int(record["created"])),
            header.base_position + HEADER_BYTES + start,
        )


logger = logging.getLogger(__name__)


class _Noted(msgspec.Struct):
    noted: Position


def catch_up(history: ObjectHistory, directory: DataDirectory, log: Log) -> None:
    """Note the versions that the newest snapshot expects, from the part of the log that it covers."""
    noted = _expected(directory)
    if history.reached >= noted:
        return
    view, known, reached = log.view(), log.snapshots[0].position, history.reached
    if view.earliest().position > reached:
        logger.warning("history_incomplete", extra={"from": reached, "to": view.earliest().position})
    names = Names(directory, view)
    for header, payload in batches(view, reached):
        if header.base_position >= known:
            break
        for message in keyed_messages(header, payload, names):
            if reached <= message.position < known:
                if history.behind:
                    history.settle(log.start.position)
                note(history, *message)
    history.noted = max(history.noted, noted)
    history.settle(log.start.position)
    logger.info("history_caught_up", extra={"from": reached, "to": noted, "keys": history.keys})


def _expected(directory: DataDirectory) -> Position:
    """How far the newest snapshot says that the history has come."""
    snapshot = newest_snapshot(directory)
    for kind, facts, _ in snapshot[1] if snapshot else ():
        if kind == "history":
            return decode_json(facts, _Noted).noted
    return 0
