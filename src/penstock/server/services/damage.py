"""Damage on the disk, found while the broker runs: the messages in it are set aside, over several turns.

Whoever reads a message finds the damage, and sets aside what it has just come across. All other messages in the same
damaged batches, in whichever queue, are found here. A start looks at what was set aside before: if somebody has put
the damaged file back, it is delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from penstock.errors import DamagedExtentError
from penstock.model.answers import Answer, Aside, Found, Held
from penstock.model.commands import Command, Criteria, Restore, Search, SetAside
from penstock.model.values import Place, Position
from penstock.server.writer.port import ServicePort
from penstock.storage.port import Log

logger = logging.getLogger(__name__)

_Range = tuple[Position, Position]

_SET_ASIDE = Criteria(states=frozenset(("damaged",)))
_EXAMINED_AT_ONCE = 1000


class Damages:
    """All damage that one broker knows of."""

    def __init__(self, loop: ServicePort) -> None:
        self._loop = loop
        self._known: set[_Range] = set()
        self._new: list[_Range] = []  # Not looked for yet.
        self._walking: list[_Range] = []  # Looked for now.
        loop.on_damage.append(self.found)

    def start(self, log: Log) -> None:
        """Begin with what a start, or a restart, has found."""
        self._known, self._new, self._walking = set(), [], []
        if self._loop.engine.damaged:
            self._ask(Search(_SET_ASIDE, limit=_EXAMINED_AT_ONCE), self._examine)
        if log.damaged:
            self._note(log.damaged)

    def found(self, damage: DamagedExtentError) -> None:
        self._note(damage.ranges)

    # ── Setting aside ───────────────────────────────────────────────────────────────────────────────────────

    def _note(self, ranges: Sequence[_Range]) -> None:
        fresh = [each for each in ranges if each not in self._known]
        self._known.update(fresh)
        self._new += fresh
        if fresh and not self._walking:
            self._walk()

    def _walk(self) -> None:
        """Look through all queues for messages in the ranges that are new."""
        self._walking, self._new = sorted(self._new), []
        self._step((0, 0))

    def _step(self, after: Place) -> None:
        self._ask(SetAside(self._walking, after), self._stepped)

    def _stepped(self, answer: Answer) -> None:
        if not isinstance(answer, Aside):
            return  # The log has failed: with the next one it begins again.
        if answer.after is not None:
            self._step(answer.after)
            return
        logger.error("messages_set_aside", extra={"damaged_messages": self._loop.engine.damaged})
        self._walking = []
        if self._new:
            self._walk()

    # ── Taking back ─────────────────────────────────────────────────────────────────────────────────────────

    def _examine(self, answer: Answer) -> None:
        """Of what is set aside, some at a time: can it be read again?"""
        if not isinstance(answer, Found):
            return
        sound = [(message.queue, message.sequence) for message in answer.messages if self._is_sound(message)]
        if sound:
            logger.warning("messages_restored", extra={"messages": len(sound)})
            self._ask(Restore(sound), lambda _: None)
        if answer.after is not None:
            self._ask(Search(_SET_ASIDE, answer.after, _EXAMINED_AT_ONCE), self._examine)

    def _is_sound(self, message: Held) -> bool:
        return self._loop.examine(message.position)

    def _ask(self, command: Command, reply: Callable[[Answer], None]) -> None:
        """In the next turn of the event loop, so that others have theirs."""
        asyncio.get_running_loop().call_soon(lambda: self._loop.submit(command, reply))
