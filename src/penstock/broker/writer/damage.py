"""Deliveries whose bytes on the disk are damaged: the messages are set aside, and the command is decided again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.broker.writer.bodies import fill, first_in
from penstock.broker.writer.commit import GroupCommit
from penstock.errors import DamagedExtentError, Reason
from penstock.model.answers import Answer, Decision, Refused
from penstock.model.commands import Command, SetAside
from penstock.model.values import Position

if TYPE_CHECKING:
    from penstock.broker.writer.executor import Executor

_DAMAGES_MAX = 100  # A command that meets more damaged parts of the log than this is refused.


class Damage:
    def __init__(self, executor: Executor, commit: GroupCommit) -> None:
        self.on_damage: list[Callable[[DamagedExtentError], None]] = []
        self._executor = executor
        self._commit = commit

    def filled(self, command: Command, decision: Decision) -> tuple[Decision, int]:
        """Read what is to be delivered, and say how many bytes that are. What cannot be read is set aside, and others
        are delivered in its place."""
        executor, damages = self._executor, 0
        while True:
            try:
                return decision, fill(decision.answer, self._commit.log.read) if decision.answer else 0
            except DamagedExtentError as error:
                damage = error
            damages += 1
            if damages > _DAMAGES_MAX or not self._set_aside(decision.answer, damage):
                return Decision((), Refused(Reason.DAMAGED, str(damage))), 0
            decision = executor.engine.decide(command, executor.now())

    def can_read(self, position: Position) -> bool:
        try:
            self._commit.log.read(position, 1)
        except DamagedExtentError as error:
            self.report(error)
            return False
        return True

    def report(self, damage: DamagedExtentError) -> None:
        for callback in self.on_damage:
            callback(damage)

    def _set_aside(self, answer: Answer, damage: DamagedExtentError) -> bool:
        """Set aside the damaged messages of an answer and those that follow them closely. False: there are none."""
        self.report(damage)
        place = first_in(answer, damage.ranges)
        if place is None:
            return False
        executor, (queue, sequence) = self._executor, place
        engine = executor.engine
        found = engine.find(engine.numbers[queue] if isinstance(queue, str) else queue, sequence)
        if found is None:
            return False
        command = SetAside(damage.ranges, (found[0].number, found[1] - 1))
        events = engine.decide(command, executor.now()).events
        if events:
            executor.apply(events)
        return bool(events)
