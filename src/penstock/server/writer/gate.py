"""The gate: every command of a client passes here, and is refused if the client's identity does not allow it.

What a command needs is in `model/permissions.py`. Services of the broker submit to the writer directly; where they
act for a client, the dialect has asked `refusal` first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.model.access import EVERYTHING, Access
from penstock.model.answers import Answer, Refused
from penstock.model.commands import Command, FinishMany, ListQueues, SettleMany
from penstock.model.permissions import NameOf, forbidden
from penstock.model.schedule_commands import ListSchedules
from penstock.model.values import Stage

if TYPE_CHECKING:
    from penstock.server.writer.port import Pending, Reply

_SYNC = Stage.SYNC
_LISTS = frozenset((ListQueues, ListSchedules))  # The engine leaves out what the identity does not see.


class Gate:
    def __init__(self, submit: Callable[[Command, Reply, Stage], Any], name_of: NameOf) -> None:
        self._submit = submit
        self._name_of = name_of

    def submit(self, access: Access, command: Command, reply: Reply, stage: Stage = _SYNC) -> Pending | None:
        if access is not EVERYTHING:
            refused = forbidden(access, command, self._name_of)
            if refused is not None:
                self._refuse(access, command, reply, stage, refused)
                return None
            if type(command) in _LISTS:
                command = replace(command, access=access)
        waiting: Pending | None = self._submit(command, reply, stage)
        return waiting

    def refusal(self, access: Access, command: Command) -> Refused | None:
        return None if access is EVERYTHING else forbidden(access, command, self._name_of)

    def _refuse(self, access: Access, command: Command, reply: Reply, stage: Stage, refused: Refused) -> None:
        """Commands of one conversation that came together stand for themselves: each is refused, or carried out."""
        if isinstance(command, FinishMany):
            self._submit_each(access, command.finishes, reply, stage)
        elif isinstance(command, SettleMany):
            self._submit_each(access, command.settles, reply, stage)
        else:
            reply(refused)

    def _submit_each(self, access: Access, commands: Sequence[Command], reply: Reply, stage: Stage) -> None:
        answers: dict[int, Answer] = {}

        def take(index: int, answer: Answer) -> None:
            answers[index] = answer
            if len(answers) == len(commands):
                reply([answers[each] for each in range(len(commands))])

        for index, command in enumerate(commands):
            self.submit(access, command, partial(take, index), stage)
