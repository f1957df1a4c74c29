"""Brings an Object History that was left behind up to the snapshot of a log that went on elsewhere.

The history lies beside the copy of the log, not in the store. A broker that takes over may have an old one or none.
"""

from __future__ import annotations

import logging

import msgspec

from penstock.broker.keyed_messages import Names, batches, keyed_messages
from penstock.decoding import decode_json
from penstock.engine.history import note
from penstock.model.values import Position
from penstock.storage.directory import DataDirectory
from penstock.storage.history.object_history import ObjectHistory
from penstock.storage.inspect import newest_snapshot
from penstock.storage.port import Log

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
