"""Redrives: messages moved from a queue back to where they came from, some at a time, for as long as it takes.

A redrive is a job of the broker, not of the client that asked for it. It is about the messages that are there when it
begins: one that fails again and returns meanwhile is not moved twice. It ends with the broker; what it has moved, is
moved.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any

from penstock.dialects.http import Awaited, Response, Stream, error_response, json_response
from penstock.dialects.parameters import refusal
from penstock.dialects.search import Order
from penstock.limits import REDRIVE_ANSWER_SECONDS, REDRIVE_AT_ONCE, REDRIVES_MAX, REDRIVES_REMEMBERED_MAX
from penstock.model import Answer, DescribeQueue, Found, Place, QueueDescription, Redrive, Redriven, Refused
from penstock.server.searching import Searching, Walk, failed

logger = logging.getLogger(__name__)

_STEPS_PER_SECOND = 10  # Of one that is to take its time.


class Redriving:
    """All redrives of one broker."""

    def __init__(self, searching: Searching) -> None:
        self._searching = searching
        self._jobs: dict[str, Job] = {}  # The newest last.

    def begin(self, order: Order) -> Response | Awaited:
        if sum(job.state == "running" for job in self._jobs.values()) >= REDRIVES_MAX:
            return error_response(503, "as many redrives are under way as may be", b"Retry-After: 1\r\n")

        def look(respond: Callable[[Response | Stream], None]) -> None:
            def found(answer: Answer) -> None:
                if isinstance(answer, QueueDescription):
                    self._start(order, answer.last_sequence, respond)
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

    def _start(self, order: Order, last: int, respond: Callable[[Response | Stream], None]) -> None:
        waiting = True

        def answer(job: Job) -> None:
            """Once: when it is done, or when that takes long."""
            nonlocal waiting
            if waiting:
                waiting = False
                timer.cancel()
                respond(job.answered())

        job = Job(self._searching, order, last, answer)
        timer = asyncio.get_running_loop().call_later(REDRIVE_ANSWER_SECONDS, answer, job)
        self._jobs[job.id] = job
        over = [name for name, each in self._jobs.items() if each.state != "running"]
        for name in over[: max(0, len(over) - REDRIVES_REMEMBERED_MAX)]:
            del self._jobs[name]
        job.step()

    def show(self, job: str) -> Response:
        found = self._jobs.get(job)
        return json_response(200, found.document()) if found else error_response(404, "there is no such redrive")

    def all(self) -> Response:
        return json_response(200, {"redrives": [job.document() for job in self._jobs.values()]})

    def stop(self, job: str) -> Response:
        found = self._jobs.get(job)
        if found is None:
            return error_response(404, "there is no such redrive")
        found.stop()
        return Response(204)


class Job:
    def __init__(self, searching: Searching, order: Order, last: int, done: Callable[[Job], None]) -> None:
        self.id = secrets.token_hex(8)
        self.state = "running"
        self._searching = searching
        self._order = order
        self._last = last  # Nothing behind this: it came later.
        self._done = done
        self._found: list[int] = []  # Not moved yet.
        self._matched = self._moved = 0
        self._failure: Refused | BaseException | None = None
        self._after: Place | None = (0, 0)
        self._began = asyncio.get_running_loop().time()

    def step(self) -> None:
        if self.state != "running":
            return
        if self._found:
            self._move()
        elif self._after is None:
            self._end("done")
        else:
            criteria = self._order.criteria
            Walk(self._searching, criteria, self._after, REDRIVE_AT_ONCE, self._take, bodies=False).step()

    def stop(self) -> None:
        if self.state == "running":
            self._end("stopped")

    def _take(self, found: Found | Refused | BaseException) -> None:
        if self.state != "running":
            return
        if not isinstance(found, Found):
            self._fail(found)
            return
        sequences = [message.sequence for message in found.messages if message.sequence <= self._last]
        self._matched += len(sequences)
        passed = len(sequences) < len(found.messages) or (found.after is not None and found.after[1] >= self._last)
        self._after = None if passed else found.after
        if not self._order.dry_run:
            self._found = sequences
        self.step()

    def _move(self) -> None:
        """Some of what was found: at a slow rate, few at a time."""
        order, rate = self._order, self._order.rate
        most = REDRIVE_AT_ONCE if rate is None else max(1, int(rate / _STEPS_PER_SECOND))
        sequences, self._found = self._found[:most], self._found[most:]
        self._searching.ask(Redrive(order.criteria.queue, sequences, order.to), self._moved_some)

    def _moved_some(self, answer: Answer) -> None:
        if not isinstance(answer, Redriven):
            assert isinstance(answer, Refused)
            self._fail(answer)
            return
        self._moved += answer.moved
        running = asyncio.get_running_loop()
        due = self._began + self._moved / self._order.rate if self._order.rate else 0.0
        if due > running.time() and (self._found or self._after is not None):
            running.call_at(due, self.step)
        else:
            self.step()

    def _fail(self, failure: Refused | BaseException) -> None:
        self._failure = failure
        self._end("failed")

    def _end(self, state: str) -> None:
        self.state = state
        if self._moved:
            logger.info("redriven", extra={"queue": self._order.criteria.queue, "moved": self._moved, "state": state})
        self._done(self)

    def answered(self) -> Response:
        """To the client that waits for it."""
        if self._failure is not None:
            return failed(self._failure)
        if self.state == "running":
            return json_response(202, self.document(), b"Location: /v1/redrive/" + self.id.encode() + b"\r\n")
        return json_response(200, self.document())

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "job": self.id,
            "state": self.state,
            "from": self._order.criteria.queue,
            "to": self._order.to or None,
            "matched": self._matched,
            "moved": self._moved,
            "dry_run": self._order.dry_run,
        }
        if self._failure is not None:
            reason = self._failure.reason.value if isinstance(self._failure, Refused) else str(self._failure)
            document["error"] = reason
        return document
