"""Commands that are cut into parts for several shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from penstock.model.answers import Answer
from penstock.model.commands import Command

ADMINISTRATION = 0  # The shard that knows what does not belong to a queue.


def _always(_: Any) -> bool:
    return True


def _never(_: Any) -> bool:
    return False


def _as_it_is(command: Command, _: list[Any]) -> Command:
    return command


class Parts(Struct, frozen=True):
    """Commands for several shards that stand for one."""

    commands: Sequence[tuple[int, Command]]  # Each with its shard.
    join: Callable[[list[Any]], Answer]  # The answers, in the order of the commands; some may be missing at the end.
    in_turn: int = 0  # So many at the beginning are sent one after the other, and the rest together.
    goes_on: Callable[[list[Any]], bool] = _always  # Whether the answers to them so far allow the next.
    again: Callable[[Any], bool] = _never  # Whether a part with this answer is asked again while others still wait.
    # All of them are meant to be carried out, or none: what is unavailable is asked again once another is done.
    belong_together: bool = False
    after: Callable[[Command, list[Any]], Command] = _as_it_is  # What a part becomes by the answers to those before.


Destination = int | Parts


def by_shard(items: Sequence[Any], shard_of: Callable[[Any], int]) -> dict[int, list[int]]:
    """The indexes of the items of each shard."""
    found: dict[int, list[int]] = {}
    for index, item in enumerate(items):
        found.setdefault(shard_of(item), []).append(index)
    return found
