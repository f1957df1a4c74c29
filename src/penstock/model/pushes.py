"""How channels are pushed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.model.queries import NoAnswer, Query
from penstock.model.settings import Push
from penstock.model.values import Packed

State = dict[str, Any]  # Empty for a channel that is not pushed.


class ReadPushes(Query, frozen=True):
    waits_for_log: ClassVar[bool] = False
    channels: list[str]


class PushStates(Packed, frozen=True):
    states: dict[str, State]  # By channel.


class CheckPush(Query, frozen=True):
    """Whether it is already known that a channel cannot be pushed like this."""

    waits_for_log: ClassVar[bool] = False
    queue: str
    push: Push


class PushChecked(Packed, frozen=True):
    refusal: str  # Why it cannot; empty if nothing is known against it.


def known(_: ReadPushes, found: Sequence[PushStates | NoAnswer]) -> PushStates:
    """Of the shards that answer. Only that of a channel knows something of it."""
    return PushStates(
        {name: state for each in found if isinstance(each, PushStates) for name, state in each.states.items()}
    )
