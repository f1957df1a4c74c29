"""Whether there is what a command names, or is there already what it would create."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.engine.decide.draft import Draft, RefusedError
from penstock.errors import Reason
from penstock.model.answers import Answer, Done, Refused
from penstock.model.commands import Command
from penstock.model.probe import Probe

_MISSING = frozenset(reason for reason in Reason if reason.status == 404)
_THERE = frozenset((Reason.QUEUE_EXISTS, Reason.IS_CHANNEL, Reason.TOKEN_EXISTS))

Decide = Callable[[Draft, Any], Answer]


def probe_with(decide: Mapping[type[Command], Decide]) -> Decide:
    """Decides what is asked about with its own function from this table, and drops what comes of it."""

    def probe(draft: Draft, command: Probe) -> Answer:
        try:
            answer = decide[type(command.head)](draft, command.head)
        except RefusedError as error:
            answer = error.refused
        draft.events.clear()
        is_about_names = isinstance(answer, Refused) and answer.reason in _MISSING | _THERE
        return answer if is_about_names else Done()

    return probe
