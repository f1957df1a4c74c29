"""A broker with a bug, started like any other: in a backup each shard notes where it ends, and goes on.

python -m tests.support.no_pause serve …
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from penstock.broker.writer.port import Pause
from penstock.broker.writer.rounds import Rounds
from penstock.cli import main

_LATE_SECONDS = 0.05  # Shards of the same process are late by one, two, … of these.
_calls = count()


def _begin_late(_: Rounds, begun: Callable[[], None]) -> Pause:
    asyncio.get_running_loop().call_later(next(_calls) % 3 * _LATE_SECONDS, begun)
    return Pause(begun)


def _say_that_it_lasted(_: Rounds, __: Pause) -> bool:
    return True


if __name__ == "__main__":
    setattr(Rounds, "pause", _begin_late)  # noqa: B010 - Methods.
    setattr(Rounds, "resume", _say_that_it_lasted)  # noqa: B010
    main()
