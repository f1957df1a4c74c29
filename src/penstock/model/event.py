"""What every event is. Events of messages, queues and batches are in `events.py`, which also lists all of them."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct

from penstock.model.kinds import Kind
from penstock.model.values import Nanos


class Event(Struct, frozen=True, gc=False):
    """Something that happened. `Engine.evolve` applies it, live and in replay alike."""

    kind: ClassVar[Kind]
    time: Nanos

    @property
    def records(self) -> int:
        """How many records it is in the log."""
        return 1
