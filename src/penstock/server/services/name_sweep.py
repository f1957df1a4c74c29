"""Forgets the names that nobody uses any more, a little at a time beside everything else."""

from __future__ import annotations

import asyncio
import logging

from penstock.engine.names import NameSweep
from penstock.limits import NAME_SWEEP_PAUSE_SECONDS, NAME_SWEEP_SECONDS
from penstock.model.answers import Answer, Refused
from penstock.model.commands import ForgetNames
from penstock.server.writer.port import ServicePort

logger = logging.getLogger(__name__)

_FORGET = ForgetNames()


class NameSweeping:
    """Looks now and then whether the table has grown. A sweep takes a slice of the event loop's time between pauses,
    then forgets some names with each command."""

    def __init__(self, loop: ServicePort) -> None:
        self._loop = loop
        self._running = asyncio.get_running_loop()
        self._engine = loop.engine
        self._before = 0  # Names, when the sweep began.
        self._timer = self._running.call_later(NAME_SWEEP_SECONDS, self._look_around)

    def stop(self) -> None:
        self._timer.cancel()

    def _look_around(self) -> None:
        engine = self._loop.engine
        if engine.names.are_worth_a_sweep and not self._loop.failure:
            self._engine, self._before = engine, len(engine.names)
            self._step(NameSweep(engine))
        else:
            self._rest()

    def _rest(self) -> None:
        self._timer = self._running.call_later(NAME_SWEEP_SECONDS, self._look_around)

    def _step(self, sweep: NameSweep) -> None:
        if self._is_abandoned():
            self._rest()
        elif sweep.step():
            self._timer = self._running.call_later(NAME_SWEEP_PAUSE_SECONDS, self._step, sweep)
        else:
            self._forget()

    def _forget(self) -> None:
        if self._engine.names.has_unused:
            self._loop.submit(_FORGET, self._forgotten)
        else:
            self._end()

    def _forgotten(self, answer: Answer) -> None:
        if self._is_abandoned():
            self._rest()
        elif isinstance(answer, Refused):
            self._end()
        else:
            self._timer = self._running.call_later(NAME_SWEEP_PAUSE_SECONDS, self._forget)

    def _end(self) -> None:
        names = self._engine.names
        names.end_sweep()
        forgotten = self._before - len(names)
        logger.info("names_swept", extra={"names": len(names), "fewer": forgotten, "most": names.most})
        self._rest()

    def _is_abandoned(self) -> bool:
        """After a failure of the log there is another engine, which has not been swept."""
        return self._loop.engine is not self._engine
