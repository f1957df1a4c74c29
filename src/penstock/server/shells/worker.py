"""Answers that take long to make: they are made part by part, in the rotation of `Turns`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.dialects.wire.http import Response, Steps, error_response
from penstock.errors import Fault
from penstock.model.answers import Answer
from penstock.model.commands import Command
from penstock.server.quotas.meter import Meter
from penstock.server.shells.turns import Turns

logger = logging.getLogger(__name__)

Submit = Callable[[Command, Callable[[Answer], None]], object]


class Worker:
    """Makes one answer, and calls `done` with it unless it was cancelled."""

    __slots__ = ("_answer", "_done", "_over", "_steps", "_submit", "_turns", "meter")

    def __init__(
        self, steps: Steps, submit: Submit, turns: Turns, done: Callable[[Response], None], meter: Meter | None = None
    ) -> None:
        self.meter = meter
        self._steps = steps
        self._submit = submit
        self._turns = turns
        self._done = done
        self._answer: Answer | None = None  # To the command of the last part.
        self._over = False
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
        self._submit(command, self._go_on)
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
        self._steps.close()

    def give_up(self) -> None:
        """It ends on its own."""
