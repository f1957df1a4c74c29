"""Answers that take long to make: they are made part by part, in the rotation of `Turns`.

Only a few are made at a time, because each holds what it has made so far. Clients that ask the same get one answer. A
client that asks while it is being made waits for the next one, so that it sees everything that was true before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from functools import partial

from penstock.broker.quotas.meter import Meter
from penstock.broker.turns import Turns
from penstock.dialects.wire.http import Response, Steps, error_response
from penstock.errors import Fault
from penstock.limits import WORKS_AT_ONCE_MAX
from penstock.model.answers import Answer
from penstock.model.client import Cancelable
from penstock.model.commands import Command
from penstock.model.queries import Query

logger = logging.getLogger(__name__)

Submit = Callable[[Command | Query, Callable[[Answer], None]], Cancelable | None]
Done = Callable[[Response], None]


class LongAnswers:
    """All long answers of one server."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: dict[Hashable, _Work] = {}  # By what is asked, in the order in which it was asked first.
        self._running: dict[Hashable, _Work] = {}

    def ask(self, key: Hashable, steps: Steps, submit: Submit, done: Done, meter: Meter | None) -> Asker:
        """`key`: what is asked and by whom. The same key leads to the same answer."""
        work = self._waiting.get(key)
        if work is None:
            work = self._waiting[key] = _Work(self, key, steps, submit, meter)
        asker = Asker(work, done)
        work.askers.append(asker)
        self._begin()
        return asker

    def _begin(self) -> None:
        while len(self._running) < WORKS_AT_ONCE_MAX:
            key = next((key for key in self._waiting if key not in self._running), None)
            if key is None:
                return
            work = self._running[key] = self._waiting.pop(key)
            work.begin(self._turns)

    def end(self, work: _Work) -> None:
        """It is made, or nobody wants it any more."""
        for works in (self._waiting, self._running):
            if works.get(work.key) is work:
                del works[work.key]
        self._begin()


class _Work:
    """One answer and those who wait for it. When it is made, it takes turns again: each answer is one part."""

    meter = None  # The time to send it is not counted.
    was_cheap = False

    @property
    def client(self) -> Hashable:
        return id(self)

    def __init__(
        self, answers: LongAnswers, key: Hashable, steps: Steps, submit: Submit, meter: Meter | None
    ) -> None:
        self.key = key
        self.askers: list[Asker] = []
        self._answers = answers
        self._facts = (steps, submit, meter)
        self._worker: Worker | None = None
        self._response: Response | None = None

    def begin(self, turns: Turns) -> None:
        steps, submit, meter = self._facts
        self._worker = Worker(steps, submit, turns, partial(self._end, turns), meter)

    def _end(self, turns: Turns, response: Response) -> None:
        self._response = response
        self._worker = None  # It knows this, and the garbage collector does not see all that this knows.
        turns.join(self)
        self._answers.end(self)

    def take_turn(self, *, crowded: bool) -> bool:  # noqa: ARG002 - It cannot be divided further.
        if self.askers:
            assert self._response is not None
            self.askers.pop().done(self._response)
        return bool(self.askers)

    def leave(self, asker: Asker) -> None:
        if asker in self.askers:
            self.askers.remove(asker)
            if not self.askers and self._response is None:
                worker, self._worker = self._worker, None
                if worker:
                    worker.cancel()
                self._answers.end(self)


class Asker:
    """A request that waits for a long answer."""

    __slots__ = ("_work", "done")

    def __init__(self, work: _Work, done: Done) -> None:
        self._work = work
        self.done = done

    def cancel(self) -> None:
        self._work.leave(self)

    def give_up(self) -> None:
        """The answer comes in any case."""


class Worker:
    """Makes one answer, and calls `done` with it unless it was cancelled."""

    __slots__ = ("_answer", "_done", "_over", "_pending", "_steps", "_submit", "_turns", "meter", "was_cheap")

    @property
    def client(self) -> Hashable:
        return id(self)

    def __init__(self, steps: Steps, submit: Submit, turns: Turns, done: Done, meter: Meter | None = None) -> None:
        self.meter = meter
        self.was_cheap = False
        self._steps = steps
        self._submit = submit
        self._turns = turns
        self._done = done
        self._answer: Answer | None = None  # To the command of the last part.
        self._over = False
        self._pending: Cancelable | None = None
        turns.join(self)

    def take_turn(self, *, crowded: bool) -> bool:  # noqa: ARG002 - A step is small in any case.
        if self._over:
            return False
        answer, self._answer = self._answer, None
        try:
            command = next(self._steps) if answer is None else self._steps.send(answer)
        except StopIteration as stop:
            self._end(stop.value)
            return False
        except Exception:
            logger.exception("request_failed")
            self._end(error_response(Fault.INTERNAL))
            return False
        if command is None:
            return True
        self._pending = self._submit(command, self._go_on)
        return False

    def _go_on(self, answer: Answer) -> None:
        if not self._over:
            self._answer = answer
            self._turns.join(self)

    def _end(self, response: Response) -> None:
        self._over = True
        self._done(response)

    def cancel(self) -> None:
        self._over = True
        if self._pending:
            self._pending.cancel()
        self._steps.close()
