"""What one shard owes to others, and how far it has come in what they owe to it.

A message that leaves for another shard is in the outbox for that shard until the target has it durably. Messages of
an outbox are numbered from 1: their serials. Their bytes stay where they are in the log, which is kept for them.
Names are stored as texts, so that no number of a name has to be kept for them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice, takewhile

import msgspec
import numpy as np

from penstock.decoding import decode_json
from penstock.engine.rows import Columns
from penstock.model.answers import Owed
from penstock.model.values import Cursor, Position

ANYWHERE: Position = sys.maxsize  # It is not known where.


class Outbox(msgspec.Struct):
    """What left for one shard and is not known to be there."""

    last: int = 0  # The serial of the last message that left.
    messages: dict[int, Owed] = {}  # By serial, in order.

    def add(self, owed: Owed) -> None:
        self.last = owed.serial
        self.messages[owed.serial] = owed

    def after(self, serial: int, count: int) -> list[Owed]:
        return list(islice((each for each in self.messages.values() if each.serial > serial), count))

    def forget(self, serial: int) -> None:
        """Forget the messages up to this one: they are there."""
        for each in list(takewhile(lambda number: number <= serial, self.messages)):
            del self.messages[each]


class Couriers:
    def __init__(self) -> None:
        self.routed = 0  # Promises for topics since the start: whether it is worth to look for them.
        self.promised: Position = 0  # Where the newest promise is in the log, or `ANYWHERE`; 0: there is none.
        self.outboxes: dict[int, Outbox] = {}  # By shard, here and below.
        self.cursors: dict[int, Cursor] = {}
        self.origins: dict[
            int, str
        ] = {}  # The names of queues of other shards that messages or events here are about.
        # By the queue number in the ids of messages that have left: the shards they left for, and their last serials.
        self.away: dict[int, dict[int, int]] = {}

    def outbox(self, shard: int) -> Outbox:
        return self.outboxes.setdefault(shard, Outbox())

    def cursor(self, shard: int) -> Cursor:
        return self.cursors.get(shard, Cursor(0, 0))

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        """The state for a snapshot. Positions are also a column, for counting what is still live in the log."""
        if self.outboxes or self.cursors or self.origins:
            facts = _Facts(self.outboxes, self.cursors, self.origins, self.away)
            positions = [each.position for outbox in self.outboxes.values() for each in outbox.messages.values()]
            yield "couriers", msgspec.json.encode(facts), (np.array(positions, dtype=np.uint64),)

    def restore(self, facts: bytes) -> None:
        stored = decode_json(facts, _Facts)
        self.outboxes, self.cursors = stored.outboxes, stored.cursors
        self.origins, self.away = stored.origins, stored.away


class _Facts(msgspec.Struct):
    """As it is written to a snapshot."""

    outboxes: dict[int, Outbox]
    cursors: dict[int, Cursor]
    origins: dict[int, str]
    away: dict[int, dict[int, int]]
