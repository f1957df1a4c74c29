"""Redrives: messages moved from a queue back to where they came from, some at a time, for as long as it takes.

A redrive is about the messages that are there when it begins: one that fails again and returns meanwhile is not moved
twice.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from penstock.dialects.native.search import Order
from penstock.dialects.wire.http import Awaited, Response, refusal
from penstock.limits import REDRIVE_AT_ONCE
from penstock.model.answers import Answer, Found, QueueDescription, Redriven, Refused
from penstock.model.commands import DescribeQueue, Redrive
from penstock.model.values import Place
from penstock.server.services.jobs import Job, Jobs, Respond
from penstock.server.services.search import Searching, Walk

logger = logging.getLogger(__name__)

_STEPS_PER_SECOND = 10  # Of one that is to take its time.


class Redriving(Jobs):
    """All redrives of one broker."""

    def __init__(self, searching: Searching) -> None:
        super().__init__("/v1/redrive", "redrives")
        self._searching = searching

    def begin(self, order: Order) -> Response | Awaited:
        if full := self.refusal():
            return full

        def look(respond: Respond) -> None:
            def found(answer: Answer) -> None:
                if isinstance(answer, QueueDescription):
                    job = Job()
                    job.work = _Redrive(job, self._searching, order, answer.last_sequence)
                    self.start(job, respond)
                else:
                    assert isinstance(answer, Refused)
                    respond(refusal(answer))

            def to_is_there(answer: Answer) -> None:
                if isinstance(answer, Refused):
                    respond(refusal(answer))
                else:
                    self._searching.loop.submit(DescribeQueue(order.criteria.queue), found)

            self._searching.loop.submit(DescribeQueue(order.to or order.criteria.queue), to_is_there)

        return Awaited(look)


class _Redrive:
    def __init__(self, job: Job, searching: Searching, order: Order, last: int) -> None:
        self._job = job
        self._searching = searching
        self._order = order
        self._last = last  # Nothing behind this: it came later.
        self._found: list[int] = []  # Not moved yet.
        self._matched = self._moved = 0
        self._after: Place | None = (0, 0)
        self._began = asyncio.get_running_loop().time()

    def step(self) -> None:
        if self._found:
            self._move()
        elif self._after is None:
            self._job.end()
        else:
            criteria = self._order.criteria
            Walk(self._searching, criteria, self._after, REDRIVE_AT_ONCE, self._take, bodies=False).step()

    def _take(self, found: Found | Refused | BaseException) -> None:
        if not self._job.is_running:
            return
        if not isinstance(found, Found):
            self._job.fail(found)
            return
        sequences = [message.sequence for message in found.messages if message.sequence <= self._last]
        self._matched += len(sequences)
        passed = len(sequences) < len(found.messages) or (found.after is not None and found.after[1] >= self._last)
        self._after = None if passed else found.after
        if not self._order.dry_run:
            self._found = sequences
        self._job.go_on()

    def _move(self) -> None:
        """Some of what was found: at a slow rate, few at a time."""
        order, rate = self._order, self._order.rate
        most = REDRIVE_AT_ONCE if rate is None else max(1, int(rate / _STEPS_PER_SECOND))
        sequences, self._found = self._found[:most], self._found[most:]
        self._searching.ask(Redrive(order.criteria.queue, sequences, order.to), self._moved_some)

    def _moved_some(self, answer: Answer) -> None:
        if not isinstance(answer, Redriven):
            assert isinstance(answer, Refused)
            self._job.fail(answer)
            return
        self._moved += answer.moved
        running = asyncio.get_running_loop()
        due = self._began + self._moved / self._order.rate if self._order.rate else 0.0
        if due > running.time() and (self._found or self._after is not None):
            running.call_at(due, self._job.go_on)
        else:
            self._job.go_on()

    def ended(self, state: str) -> None:
        if self._moved:
            logger.info("redriven", extra={"queue": self._order.criteria.queue, "moved": self._moved, "state": state})

    def document(self) -> dict[str, Any]:
        return {
            "from": self._order.criteria.queue,
            "to": self._order.to or None,
            "matched": self._matched,
            "moved": self._moved,
            "dry_run": self._order.dry_run,
        }
