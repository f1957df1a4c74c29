"""How often messages were delivered, given back and failed, by queue: counted only while somebody watches."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.model.kinds import Kind, kinds_where
from penstock.server.close_up import TAKEN, CloseUp


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


class Tally:
    def __init__(self) -> None:
        self.is_wanted = False
        self.close_ups: dict[int, CloseUp] = {}  # By the number of the queue.
        self._by_queue: dict[int, list[int]] = {}

    def note(self, event: Any) -> None:
        """For events of the kinds in `COUNTED`, while `is_wanted`."""
        counts = self._by_queue.get(event.queue)
        if counts is None:
            counts = self._by_queue[event.queue] = [0, 0, 0]
        counts[COUNTED[event.kind]] += event.records
        if self.close_ups and event.kind in TAKEN and event.queue in self.close_ups:
            self.close_ups[event.queue].note(event)

    def begin(self) -> None:
        self.is_wanted = True

    def end(self) -> None:
        self.is_wanted = False
        self.close_ups = {}
        self._by_queue.clear()

    def of(self, queue: int) -> Tallied:
        return Tallied(*self._by_queue.get(queue, ()))
