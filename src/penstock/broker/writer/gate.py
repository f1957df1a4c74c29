"""The gate: every command of a client passes here, and is refused if the client's identity does not allow it.

What a command needs is in `model/permissions.py`. Services of the broker submit to the writer directly; where they
act for a client, the dialect has asked `refusal` first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from penstock.broker.figures.waits import Latencies
from penstock.broker.writer.asked import through
from penstock.limits import COMMANDS_PER_SAMPLE
from penstock.model.access import EVERYTHING
from penstock.model.answers import Answer, Refused
from penstock.model.audit import ACTS
from penstock.model.client import Client
from penstock.model.commands import Command, FinishMany, ListQueues, SettleMany
from penstock.model.permissions import BY_NUMBER, NameOf, forbidden, only_seen, told
from penstock.model.probe import Probe
from penstock.model.schedules import ListSchedules
from penstock.model.values import Stage

if TYPE_CHECKING:
    from penstock.broker.writer.port import Pending, Reply

_SYNC = Stage.SYNC
_LISTS = frozenset((ListQueues, ListSchedules))  # The engine leaves out what the identity does not see.


class Auditor(Protocol):
    """Records what clients do, and what they may not do."""

    def submit(self, client: Client, command: Command, reply: Reply, stage: Stage) -> None:
        """Carry out an administrative command, and record it."""

    def forbid(self, client: Client, command: Command, refused: Refused) -> None:
        """Record that a client may not send a command."""


class Gate:
    def __init__(self, submit: Callable[[Command, Reply, Stage, Client], Any], name_of: NameOf) -> None:
        self._submit = submit
        self._name_of = name_of
        self.auditor: Auditor | None = None
        self.latencies = Latencies()
        self._until_sample = COMMANDS_PER_SAMPLE

    def submit(self, client: Client, command: Command, reply: Reply, stage: Stage = _SYNC) -> Pending | None:
        access = client.access
        if access is not EVERYTHING:
            refused = forbidden(access, command, self._name_of)
            if refused is not None:
                self._refuse(client, command, reply, stage, refused)
                return None
            if type(command) in _LISTS:
                command = replace(command, access=access)
        if type(command) in ACTS and self.auditor:
            self.auditor.submit(client, command, reply, stage)
            return None
        self._until_sample -= 1
        if not self._until_sample:
            reply = self._timed(client, command, reply)
        waiting: Pending | None = self._submit(command, reply, stage, client)
        return waiting

    def _timed(self, client: Client, command: Command, reply: Reply) -> Reply:
        """Measure one command in some: each would cost more than a good part of deciding it."""
        self._until_sample = COMMANDS_PER_SAMPLE
        if getattr(command, "wait_ns", 0):
            return reply  # How long it takes is up to others.
        return through(reply, self.latencies.timed(client.dialect, reply))

    def refusal(self, client: Client, command: Command) -> Refused | None:
        refused = None if client.access is EVERYTHING else forbidden(client.access, command, self._name_of)
        if refused is None:
            return None
        self._record(client, command, refused)
        return told(client.access, command, refused, self._name_of)

    def _record(self, client: Client, command: Command, refused: Refused) -> None:
        about: Any = command.head if isinstance(command, Probe) else command
        is_unknown = type(about) in BY_NUMBER and self._name_of(about.queue) is None
        if self.auditor and not is_unknown:  # Nobody knows what an unknown id is about.
            self.auditor.forbid(client, about, refused)

    def _refuse(self, client: Client, command: Command, reply: Reply, stage: Stage, refused: Refused) -> None:
        """Commands of one conversation that came together stand for themselves: each is refused, or carried out."""
        if isinstance(command, FinishMany):
            self._submit_each(client, command.finishes, reply, stage)
        elif isinstance(command, SettleMany):
            self._submit_each(client, command.settles, reply, stage)
        else:
            self._record(client, command, refused)
            seen = only_seen(client.access, command, self._name_of)
            if still_refused := forbidden(client.access, seen, self._name_of):
                reply(told(client.access, command, still_refused, self._name_of))
            else:
                self._submit(seen, reply, stage, client)

    def _submit_each(self, client: Client, commands: Sequence[Command], reply: Reply, stage: Stage) -> None:
        answers: dict[int, Answer] = {}

        def take(index: int, answer: Answer) -> None:
            answers[index] = answer
            if len(answers) == len(commands):
                reply([answers[each] for each in range(len(commands))])

        for index, command in enumerate(commands):
            self.submit(client, command, partial(take, index), stage)
