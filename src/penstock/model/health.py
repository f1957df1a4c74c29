"""Whether everything works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.model.queries import Absent, Heard, Query
from penstock.model.values import Packed

GREEN, YELLOW, RED = range(3)


class Health(Packed, frozen=True):
    level: int
    text: str = ""  # Why it is not green.


class ReadHealth(Query, frozen=True):
    waits_for_log: ClassVar[bool] = False


def worst(_: ReadHealth, heard: Sequence[Heard]) -> Health:
    """A shard that cannot be asked is worse than any answer."""
    return max([_shown(each.shard, each.answer) for each in heard], key=lambda health: health.level)


def _shown(shard: int, answer: Any) -> Health:
    if isinstance(answer, Health):
        return answer
    if not isinstance(answer, Absent):
        return Health(RED, f"shard {shard} cannot be reached")
    if answer.is_away:
        return Health(RED, f"shard {shard} cannot be reached: {answer.state}")
    return Health(YELLOW, f"nothing is known of shard {shard} now: {answer.state}")
