"""Recurring schedules: when each runs next, and what it has done so far.

A heap says which schedule is due first. An entry counts if its time is the one that its schedule is armed for; others
are left where they are until they come to the top, or until there are too many of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

import msgspec

from penstock.decoding import decode_json
from penstock.engine.rows import Columns
from penstock.limits import NEVER_NS, SCHEDULES_PER_SECTION
from penstock.model.schedules import Schedule
from penstock.model.values import Nanos, Place

_STALE_MAX = 64  # And as many as there are schedules.


class Planned(msgspec.Struct, omit_defaults=True, gc=False):
    """One schedule."""

    name: str
    definition: Schedule
    next: Nanos  # The next tick.
    due_at: Nanos  # When to look at it: at the next tick, or later if that could not be published.
    runs: int = 0
    missed: int = 0
    last_run: Nanos = 0
    last_place: Place | None = None
    error: str = ""
    set_at: Nanos = 0  # When it was created or changed; only where there are several shards.

    @property
    def armed(self) -> Nanos:
        return NEVER_NS if self.definition.paused else self.due_at

    def to_store(self) -> dict[str, Any]:
        fields: dict[str, Any] = msgspec.to_builtins(self)
        return fields | {"definition": self.definition.to_store()}


class Schedules:
    def __init__(self) -> None:
        self.by_name: dict[str, Planned] = {}  # The oldest first.
        self.bytes = 0  # Of their messages.
        self._heap: list[tuple[Nanos, str]] = []

    def __len__(self) -> int:
        return len(self.by_name)

    @property
    def next_due(self) -> Nanos:
        """By the clock of the machine."""
        return self._heap[0][0] if self._heap else NEVER_NS

    def first_due(self, now: Nanos) -> Planned | None:
        return self.by_name[self._heap[0][1]] if self.next_due <= now else None

    def page(self, offset: int, limit: int) -> list[Planned]:
        return list(islice(self.by_name.values(), offset, offset + limit))

    # ── While what one needs to run is got from elsewhere ───────────────────────────────────────────────────

    def hold(self) -> None:
        """The first one that is due is not due until it is released, or changed."""
        heappop(self._heap)
        self._tidy()

    def release(self, name: str) -> None:
        if planned := self.by_name.get(name):
            self.put(planned)

    # ── Changed by events ───────────────────────────────────────────────────────────────────────────────────

    def put(self, planned: Planned) -> None:
        """Add a schedule, or take note of one that has changed."""
        self.by_name[planned.name] = planned
        if planned.armed != NEVER_NS:
            heappush(self._heap, (planned.armed, planned.name))
        self._tidy()

    def define(self, name: str, definition: Schedule, following: Nanos, set_at: Nanos) -> None:
        before = self.by_name.get(name)
        self.bytes += definition.size - (before.definition.size if before else 0)
        planned = before or Planned(name, definition, following, following)
        planned.definition, planned.next, planned.due_at, planned.error = definition, following, following, ""
        planned.set_at = set_at
        self.put(planned)

    def remove(self, name: str) -> None:
        self.bytes -= self.by_name.pop(name).definition.size
        self._tidy()

    def _tidy(self) -> None:
        """Let the first entry be one that counts."""
        if len(self._heap) > 2 * len(self.by_name) + _STALE_MAX:
            self._heap = [(each.armed, each.name) for each in self.by_name.values() if each.armed != NEVER_NS]
            heapify(self._heap)
        while self._heap and not self._counts(*self._heap[0]):
            heappop(self._heap)

    def _counts(self, time: Nanos, name: str) -> bool:
        planned = self.by_name.get(name)
        return planned is not None and planned.armed == time

    def part(self, is_mine: Callable[[Schedule], bool]) -> Schedules:
        """Only some of them."""
        part = Schedules()
        for planned in self.by_name.values():
            if is_mine(planned.definition):
                part.bytes += planned.definition.size
                part.put(planned)
        return part

    # ── Snapshots ───────────────────────────────────────────────────────────────────────────────────────────

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        for offset in range(0, len(self), SCHEDULES_PER_SECTION):
            stored = [planned.to_store() for planned in self.page(offset, SCHEDULES_PER_SECTION)]
            yield "schedules", msgspec.json.encode(stored), ()

    def restore(self, facts: bytes) -> None:
        """Take one piece of `sections` back."""
        for planned in decode_json(facts, list[Planned]):
            self.bytes += planned.definition.size
            self.put(planned)
