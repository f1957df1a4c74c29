"""Redrives: move messages from a queue back to where they came from, some at a time.

A redrive moves the messages that are in the queue when it begins: one that fails again and returns is not moved
twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.broker.services.audit import Audit, RecordEnd
from penstock.broker.services.audit_changes import HIDDEN, Settings
from penstock.broker.services.contract import accepted
from penstock.broker.services.jobs import Job, Jobs
from penstock.broker.services.search import Searches
from penstock.broker.writer.port import ClientPort
from penstock.limits import REDRIVE_AT_ONCE
from penstock.model.answers import QueueDescription
from penstock.model.client import Client
from penstock.model.commands import DescribeQueue, Redrive
from penstock.model.jobs import JobState, Order, StartRedrive
from penstock.model.values import Place

logger = logging.getLogger(__name__)

_STEPS_PER_SECOND = 10  # If the rate is limited.


class Redrives(Jobs):
    """All redrives of one broker."""

    def __init__(self, searches: Searches, audit: Audit) -> None:
        super().__init__(searches, "redrives")
        self._audit = audit
        self.all_queues: ClientPort = self.writer  # Of all shards, if there are several.

    async def redrive(self, client: Client, query: StartRedrive) -> JobState:
        self.check_room()
        order = query.order
        for name in self._unchecked(order):
            await accepted(self.all_queues, DescribeQueue(name))
        record_end: RecordEnd = _no_record
        if not order.dry_run:
            record_end = await self._audit.begin(
                client, Redrive(order.criteria.queue, (), order.to), _recorded(order)
            )
        source: QueueDescription = await accepted(self.writer, DescribeQueue(order.criteria.queue))
        return await self.begun(_Redrive(self._searches, order, source.last_sequence, record_end))

    def _unchecked(self, order: Order) -> list[str]:
        """The queues that must exist, the source first, as far as the audit does not see to that."""
        engine, source = self.writer.engine, order.criteria.queue
        if order.dry_run:
            return [source, order.to] if order.to else [source]
        is_away = order.to and engine.queue(source) is not None and engine.is_elsewhere(order.to)
        return [order.to] if is_away else []


def _no_record(_: Settings) -> None:
    """Nothing was moved."""


def _recorded(order: Order) -> Settings:
    """What a record says of a redrive. A text may be the content of a message."""
    shown = {name: HIDDEN if name in ("text", "key") else value for name, value in order.filter.items()}
    return {
        "to": order.to or "(each to the queue that it came from)",
        **({"filter": shown} if shown else {}),
        **({"rate": order.rate} if order.rate else {}),
    }


class _Redrive:
    def __init__(self, searches: Searches, order: Order, last: int, record_end: RecordEnd) -> None:
        self._searches = searches
        self._record_end = record_end
        self._order = order
        self.queue = order.criteria.queue
        self._last = last  # Later messages came after the redrive began.
        self._matched = self._moved = 0
        self._began = asyncio.get_running_loop().time()

    async def run(self, job: Job) -> None:
        after: Place | None = (0, 0)
        while job.is_running and after is not None:
            found = await self._searches.walk(self._order.criteria, after, REDRIVE_AT_ONCE, bodies=False)
            sequences = [message.sequence for message in found.messages if message.sequence <= self._last]
            self._matched += len(sequences)
            after = found.after
            if len(sequences) < len(found.messages) or (after is not None and after[1] >= self._last):
                after = None
            if not self._order.dry_run:
                await self._move(job, sequences, is_last=after is None)

    async def _move(self, job: Job, sequences: list[int], *, is_last: bool) -> None:
        """Move messages, a few at a time if the rate is limited."""
        order, rate = self._order, self._order.rate
        most = REDRIVE_AT_ONCE if rate is None else max(1, int(rate / _STEPS_PER_SECOND))
        while job.is_running and sequences:
            some, sequences = sequences[:most], sequences[most:]
            redriven = await self._searches.ask(Redrive(order.criteria.queue, some, order.to))
            self._moved += redriven.moved
            if rate and (sequences or not is_last):
                due = self._began + self._moved / rate
                await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    def progress(self) -> dict[str, Any]:
        return {
            "from": self.queue,
            "to": self._order.to or None,
            "matched": self._matched,
            "moved": self._moved,
            "dry_run": self._order.dry_run,
        }

    def ended(self, state: str) -> None:
        self._record_end({"matched": self._matched, "moved": self._moved, "state": state})
        if self._moved:
            logger.info("redriven", extra={"queue": self.queue, "moved": self._moved, "state": state})
