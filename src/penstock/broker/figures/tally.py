"""How often messages were delivered, given back and failed, by queue: counted only while somebody watches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.broker.figures import paces
from penstock.broker.figures.paces import NameOf, Paces
from penstock.broker.figures.waits import TAKEN, CloseUp
from penstock.engine.queue import Queue
from penstock.model.consumers import Consumer
from penstock.model.kinds import Kind, kinds_where
from penstock.model.values import Nanos


class Tallied(NamedTuple):
    """What happened to the messages of one queue since counting began."""

    delivered: int = 0
    retried: int = 0
    failed: int = 0


_DELIVERED, _RETRIED, _FAILED = range(3)

COUNTED: dict[Kind, int] = {
    **dict.fromkeys(kinds_where(lambda row: row.letters in ("F", "K")), _DELIVERED),
    **dict.fromkeys(kinds_where(lambda row: row.letters == "R" and row.notice), _RETRIED),
    **dict.fromkeys(kinds_where(lambda row: "E" in row.letters), _FAILED),
}
"""The kinds that count, each with its place in `Tallied`."""
NOTED = frozenset(COUNTED) | paces.NOTED


class Tally:
    def __init__(self) -> None:
        self.is_wanted = False
        self.close_ups: dict[int, CloseUp] = {}  # By the number of the queue.
        self.paces = Paces()  # Of the consumers of these queues, or of all.
        self.paced_since: Nanos = 0  # 0: only of these.
        self._is_watched = False
        self._by_queue: dict[int, list[int]] = {}

    def note(self, event: Any) -> None:
        """For events of the kinds in `NOTED`, while `is_wanted`."""
        place = COUNTED.get(event.kind)
        if place is not None:
            counts = self._by_queue.get(event.queue)
            if counts is None:
                counts = self._by_queue[event.queue] = [0, 0, 0]
            counts[place] += event.records
        closely = self.close_ups.get(event.queue) if self.close_ups else None
        if closely is not None and event.kind in TAKEN:
            closely.note(event)
        if self.paced_since or closely is not None:
            self.paces.note(event)

    def begin(self) -> None:
        self._is_watched = self.is_wanted = True

    def end(self) -> None:
        self._is_watched = False
        self.close_ups = {}
        self._settle()

    def pace_all(self, now: Nanos) -> None:
        """Count the consumers of all queues."""
        self.paced_since = self.paced_since or now
        self.is_wanted = True

    def end_pacing(self) -> None:
        self.paced_since = 0
        self._settle()

    def _settle(self) -> None:
        """Forget what nobody wants any more."""
        self.is_wanted = self._is_watched or bool(self.paced_since)
        if not self._is_watched:
            self._by_queue.clear()
        if not self.paced_since and not self.close_ups:
            self.paces = Paces()

    def of(self, queue: int) -> Tallied:
        return Tallied(*self._by_queue.get(queue, ()))

    def consumers(
        self, queue: Queue, now: Nanos, name_of: NameOf, waiting: Mapping[str, Iterable[str | None]]
    ) -> list[Consumer]:
        """What the consumers of a queue do. `waiting`: who waits for a message, by queue."""
        closely = self.close_ups.get(queue.number)
        began = min([each for each in (closely.began if closely else 0, self.paced_since) if each], default=now)
        return self.paces.consumers(queue, now, began, name_of, waiting.get(queue.name, ()))
