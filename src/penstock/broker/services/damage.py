"""Sets aside the messages in damaged parts of the log.

A command that reads a message finds the damage, and sets aside the messages it was reading. This service finds all
others in the same damaged batches, in all queues. At a start it reads the messages that were set aside before: if the
damaged file was restored from a backup, they are delivered again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from penstock.broker.services.contract import Service, when_fetched
from penstock.broker.writer.port import ServicePort
from penstock.model.answers import Aside, Found
from penstock.model.commands import Criteria, Restore, Search, SetAside
from penstock.model.values import Place, Position

logger = logging.getLogger(__name__)

_Range = tuple[Position, Position]

_SET_ASIDE = Criteria(states=frozenset(("damaged",)))
_EXAMINED_AT_ONCE = 1000


class DamagedMessages(Service):
    def __init__(self, writer: ServicePort) -> None:
        super().__init__(writer)
        self._known: set[_Range] = set()
        self._new: list[_Range] = []  # Their messages are not set aside yet.
        writer.on_damage.append(lambda damage: self._note(damage.ranges))

    def start(self) -> None:
        self._known, self._new = set(), []
        self._note(self.writer.log.damaged)
        super().start()

    def _note(self, ranges: Iterable[_Range]) -> None:
        fresh = [each for each in ranges if each not in self._known]
        self._known.update(fresh)
        self._new += fresh
        self.wake()

    async def run(self) -> None:
        await self._restore()
        while True:
            while self._new:
                ranges, self._new = sorted(self._new), []
                await self._set_aside(ranges)
            await self.rest()

    async def _set_aside(self, ranges: list[_Range]) -> None:
        """Set aside the messages in these ranges, in all queues."""
        after: Place | None = (0, 0)
        while after is not None:
            answer = await self.ask(SetAside(ranges, after))
            if not isinstance(answer, Aside):
                return  # The log has failed. The service starts again with the next one.
            after = answer.after
        logger.error("messages_set_aside", extra={"damaged_messages": self.writer.engine.damaged})

    async def _restore(self) -> None:
        """Restore the messages that can be read again."""
        after: Place | None = (0, 0) if self.writer.engine.damaged else None
        while after is not None:
            found = await self.ask(Search(_SET_ASIDE, after, _EXAMINED_AT_ONCE))
            if not isinstance(found, Found):
                return
            after = found.after
            sound = [
                each for each in found.messages if await when_fetched(partial(self.writer.examine, each.position))
            ]
            if sound:
                logger.warning("messages_restored", extra={"messages": len(sound)})
                await self.ask(Restore([(each.queue, each.sequence) for each in sound]))
