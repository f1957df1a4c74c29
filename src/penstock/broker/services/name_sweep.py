"""Forgets the names that no message uses any more, a few at a time.

A sweep examines all messages in slices, with pauses between them, then forgets some names with each command."""

from __future__ import annotations

import logging

from penstock.broker.services.contract import Service
from penstock.engine.name_sweep import NameSweep
from penstock.limits import NAME_SWEEP_PAUSE_SECONDS, NAME_SWEEP_SECONDS
from penstock.model.answers import Refused
from penstock.model.commands import ForgetNames

logger = logging.getLogger(__name__)

_FORGET = ForgetNames()


class NameSweeps(Service):
    async def run(self) -> None:
        while True:
            await self.rest(NAME_SWEEP_SECONDS)
            if self.writer.engine.names.are_worth_a_sweep and not self.writer.failure:
                await self._sweep()

    async def _sweep(self) -> None:
        engine = self.writer.engine
        names, before = engine.names, len(engine.names)
        sweep = NameSweep(engine)
        while sweep.step():
            await self.rest(NAME_SWEEP_PAUSE_SECONDS)
        while names.has_unused and not isinstance(await self.ask(_FORGET), Refused):
            await self.rest(NAME_SWEEP_PAUSE_SECONDS)
        names.end_sweep()
        logger.info("names_swept", extra={"names": len(names), "fewer": before - len(names), "most": names.most})
